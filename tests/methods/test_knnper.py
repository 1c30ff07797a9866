"""kNN-Per: the golden file, a pencil, the store, and what it is without neighbours."""

import pytest
import torch

from awkward import DATA, config, play
from split_mlp import close
from support import golden, golden_names
from unskew.base.batch import Output
from unskew.base.errors import InputError
from unskew.core.jobs import Job
from unskew.core.method import methods
from unskew.core.visit import open_outcome
from unskew.methods.knnper import STORE, KNNPer, mixture, vote
from unskew.runs import building


def store_of(features, labels, classes):
    hot = torch.nn.functional.one_hot(torch.tensor(labels), classes).double()
    real = torch.ones(len(labels), dtype=torch.bool)
    return {"features": torch.tensor(features, dtype=torch.float64), "labels": hot, "real": real}


@pytest.mark.parametrize("name", golden_names("knnper_predict*"))
def test_golden_predictions(name):
    file = golden(name)
    given, hyper = file.inputs, file.hyper
    logits = torch.tensor(given["model_logits"], dtype=torch.float64)
    features = torch.tensor(given["test_features"], dtype=torch.float64)
    store = store_of(given["train_features"], given["train_y"], logits.shape[1])
    knn = vote(features, store, hyper["k"], hyper["scale"])
    close(knn, file.expected["knn"], file)
    close(mixture(knn, logits, hyper["weight"], "logits"), file.expected["mixed_official"], file)
    close(mixture(knn, logits, hyper["weight"], "probabilities"), file.expected["mixed_probabilities"], file)
    for mix, key in (("logits", "mixed_official"), ("probabilities", "mixed_probabilities")):
        method = KNNPer(k=hyper["k"], scale=hyper["scale"], share=hyper["weight"], mix=mix)
        scores = method.predict(Seen(logits, features, store), {}, None)
        close(scores if mix == "logits" else scores.exp(), file.expected[key], file)


class Seen:
    """A context whose network says what is given."""

    def __init__(self, logits, features, store):
        self.out, self.made = Output(logits, features), {STORE: store}

    def forward(self, params, x, mode):
        return self.out


def test_by_hand():
    # dim 1, scale 1; neighbours of 0: 1 (class 0) and -2 (class 1): e^-1 and e^-4 of e^-1 + e^-4; 9 is left out
    found = vote(torch.zeros(1, 1).double(), store_of([[1.0], [-2.0], [9.0]], [0, 1, 1], 2), 2, 1.0)
    first = 1 / (1 + torch.e**-3)
    torch.testing.assert_close(found, torch.tensor([[first, 1 - first]], dtype=torch.float64))


def test_padding_has_no_vote_and_far_neighbours_still_have_one():
    store = store_of([[1000.0], [1001.0], [0.0]], [0, 1, 1], 2)
    store["real"][2] = False
    found = vote(torch.zeros(1, 1).double(), store, 3, 1.0)
    assert found[0].tolist() == pytest.approx([1.0, 0.0], abs=1e-12)


def visit(spec, client=0):
    task = building.prepare(config(spec), dataset=DATA).task
    c = task.visit(Job("personal", 1, client, task.initial), task.federation.train(client))
    return task, *open_outcome(c, task.method.personalise(c))


def test_the_store_holds_at_most_so_many_samples():
    task, c, _ = visit("knnper(fedavg, capacity=7)")
    store = c.made[STORE]
    assert store["features"].shape[0] == 7 == int(store["real"].sum())
    whole = visit("knnper(fedavg)")[1].made[STORE]
    assert len(whole["features"]) == len(task.federation.train(0))
    assert torch.equal(whole["labels"].argmax(1), task.federation.train(0).y)
    every = {tuple(row) for row in whole["features"].tolist()}
    assert all(min(sum((a - b) ** 2 for a, b in zip(row, one, strict=True)) for one in every) < 1e-8
               for row in store["features"].tolist())  # fmt: skip


@pytest.mark.parametrize("inner", ["fedavg", "finetuned(fedavg)", "scaffold"])
def test_without_neighbours_predictions_are_the_inner_methods(inner):
    """Also with one sample in the store, where k is more than there is."""
    ours, plain = play(f"knnper({inner}, share=0)"), play(inner)
    assert ours.summary["personal"]["mean"] == plain.summary["personal"]["mean"]
    assert all(torch.equal(value, plain.server["model"][name]) for name, value in ours.server["model"].items())


def test_a_client_with_one_sample_always_says_its_label_if_neighbours_decide():
    task, c, params = visit("knnper(share=1)", client=1)
    scores = task.method.predict(c, params, next(iter(task.federation.train(0).passes(8))).x)
    assert set(scores.argmax(1).tolist()) == set(task.federation.train(1).y.tolist())
    assert torch.isfinite(scores).all()


def test_stacked_tests_give_the_same_figures(caplog):
    how = {"executor": "stacked", "chunk": 3}
    for model in ("cnn8", "cnn8(norm=batch)"):
        serial, stacked = (play("knnper(capacity=9)", model=model, execution=e)
                           for e in ({"memory_format": "contiguous"}, how))  # fmt: skip
        assert stacked.summary["personal"]["mean"] == pytest.approx(serial.summary["personal"]["mean"], abs=0.02)
    assert "one by one" not in caplog.text


def test_outputs_and_refusals():
    assert KNNPer().output == "tuned" and str(KNNPer().inner) == "finetuned(inner=fedavg)"
    with pytest.raises(InputError, match="predict by the network alone; fedetf has a rule of its own"):
        methods.build("knnper(fedetf)")
    for spec in ("knnper(k=0)", "knnper(share=2)", "knnper(mix=sum)", "knnper(scale=0)", "knnper(capacity=0)"):
        with pytest.raises(InputError):
            methods.build(spec)


@pytest.mark.parametrize("inner", ["fedala", "own(fedavg)", "fedper(evaluate=own)", "ditto"])
def test_without_neighbours_it_is_the_inner_method_with_its_own_statistics(inner):
    """BatchNorm's statistics of a client's own model also make the features of its samples."""
    options = {"rounds": 2, "sample": 0.6, "evaluation": {"local_test": "holdout"}}
    mixed, plain = (play(spec, **options).rounds[-1]["personal"] for spec in (f"knnper({inner}, share=0)", inner))
    assert mixed["pooled"] == plain["pooled"] and mixed["mean"] == plain["mean"]
