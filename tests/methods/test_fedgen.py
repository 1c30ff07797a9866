"""FedGen: golden terms, a pencil, the generator's training, and what is left without it."""

import pytest
import torch

from awkward import DATA, config, play
from split_mlp import Client, close, params_of, split_task
from support import golden, golden_names
from unskew.base import tree
from unskew.base.errors import InputError
from unskew.core.jobs import Job
from unskew.core.method import methods
from unskew.methods.feature_size import count_features
from unskew.methods.fedgen.generator import classify_by_all, diversity, pick_labels, share_labels, teach
from unskew.methods.fedgen.method import FedGen, Generated
from unskew.models import architectures
from unskew.models.etf import head_inputs
from unskew.runs import building

GOLDEN = pytest.mark.parametrize("name", golden_names("fedgen_terms*"))


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def golden_visit(file):
    given, dims, hyper = file.inputs, file.inputs["dims"], file.hyper
    assert (len(given["gen_y"]), len(given["y"])) == (hyper["gen_batch"], hyper["batch"])
    client = Client([{"x": given["x"], "y": given["y"]}], dims["c"])
    task = split_task(FedGen(), dims, [client], params_of(given["params"]), batch=hyper["batch"])
    message = {"model": task.initial["model"], "generator": {}, "labels": {}}
    return task, task.visit(Job("train", 1, 0, message), client), next(client.passes(9))


@GOLDEN
def test_golden_loss_of_a_client(name):
    file = golden(name)
    given = file.inputs
    task, c, batch = golden_visit(file)

    class Made(Generated):
        """What the generator makes is given."""

        def make(self, c, batch, like):
            return tensor(given["gen_features"]), torch.tensor(given["gen_y"]), tensor(given["gen_features_for_y"])

    def loss(alpha, beta):
        terms = (Made(alpha=alpha, beta=beta),)
        return task.method.loss(c.with_fields(terms=terms), task.initial["model"], batch)

    alpha, beta, expected = file.hyper["alpha"], file.hyper["beta"], file.expected
    ratio = file.hyper["gen_batch"] / file.hyper["batch"]
    close(loss(alpha, beta), expected["client_loss"], file)
    close(loss(0, 0), expected["predictive"], file)
    close((loss(1, 0) - loss(0, 0)) / ratio, expected["teacher"], file)
    close(loss(0, 1) - loss(0, 0), expected["latent_kl"], file)
    # what is generated for the batch's own labels is a target without gradient: the head learns by the other two
    grads = c.grad(lambda p: Made(alpha=0, beta=1)(c, p, batch, c.forward(p, batch.x)), task.initial["model"])
    assert all(value.any() for value in grads.values())


@GOLDEN
def test_golden_loss_of_the_generator(name):
    file = golden(name)
    given, expected = file.inputs, file.expected
    task, _, _ = golden_visit(file)
    one, two = (params_of(given[key]) for key in ("params", "params_client2"))
    heads = {key: torch.stack([one[key], two[key]]) for key in one if key.startswith("head.")}
    features, y = tensor(given["gen_features"]), torch.tensor(given["gen_y"])
    logits = classify_by_all(task.server_context(1), task.initial["model"], heads, features)
    taught = teach(logits, y, tensor(given["label_weights"]))
    close(taught, expected["server_teacher"], file)
    close(diversity(tensor(given["noise"]), features), expected["diversity"], file)
    close(taught + diversity(tensor(given["noise"]), features), expected["generator_loss"], file)


def test_by_hand():
    # two samples: noise 0 and 2 (squared 4), features 0 and 3 (distance 3); two of four pairs: exp(-(12 + 12) / 4)
    value = diversity(torch.tensor([[0.0], [2.0]]), torch.tensor([[0.0], [3.0]]))
    assert value.item() == pytest.approx(torch.e**-6)
    assert share_labels(torch.tensor([[1.0, 0.0], [3.0, 0.0]])).tolist() == [[0.25, 0.75], [0.0, 0.0]]
    assert pick_labels(torch.tensor([0.0, 0.49, 0.5, 0.9999]), torch.tensor([2, 7])).tolist() == [2, 2, 7, 7]


def test_strengths_fade():
    term = Generated(alpha=10.0, beta=0.0, decay=0.5)
    rounds = [building.prepare(config("fedgen"), dataset=DATA).task.server_context(r) for r in (1, 2, 3, 40)]
    assert [term._now(s, term.alpha) for s in rounds] == [10.0, 5.0, 2.5, 1e-4]
    assert term._now(rounds[0], term.beta) == 0


def test_first_round_is_fedavgs_and_without_strength_all_are():
    for rounds, spec, equal in ((1, "fedgen", True), (2, "fedgen(alpha=0, beta=0)", True), (2, "fedgen", False)):
        ours, plain = play(spec, rounds=rounds).server["model"], play("fedavg", rounds=rounds).server["model"]
        assert all(torch.equal(value, plain[name]) for name, value in ours.items()) == equal


def test_the_generator_learns_what_the_heads_know():
    result = play("fedgen(gen_lr=0.01)", rounds=3)
    rows = [row["method"] for row in result.rounds[1:]]
    assert rows[-1]["generator_loss"] < rows[0]["generator_loss_before"]
    assert result.server["moments"]["step"] == 150
    assert result.server["labels"]["seen"].tolist() == [True] * 3


def test_every_step_has_its_own_noise():
    task = building.prepare(config("fedgen"), dataset=DATA).task
    server = task.method.init(task.server_context(0))
    server["labels"]["seen"] = torch.tensor([True, False, True])
    message = task.method.download(task.server_context(2), server, 0)
    c = task.visit(Job("train", 2, 0, message), task.federation.train(0))
    (term,), batch = task.method.own_terms(), next(c.passes(8))
    like = torch.zeros(1, server["model"]["head.weight"].shape[1])
    first, labels, _ = term.make(c, batch, like)
    assert set(labels.tolist()) == {0, 2}
    assert torch.equal(first, term.make(c, batch, like)[0])
    c.diagnostics.step(batch)
    assert not torch.equal(first, term.make(c, batch, like)[0])


def test_bytes():
    result = play("fedgen", rounds=2, model="cnn8", sample=1.0)
    model, generator = (tree.nbytes({"m": result.server[key]}) for key in ("model", "generator"))
    assert [row["bytes_up"] for row in result.rounds[1:]] == [5 * (model + 4 * 3)] * 2
    assert [row["bytes_down"] for row in result.rounds[1:]] == [5 * model, 5 * (model + generator + 4 * 3)]


@pytest.mark.parametrize("model", ["mlp", "cnn8", "mobilenetv2_flfa"])
def test_the_size_of_features_is_read_off_the_head(model):
    built = architectures.build(model).build((3, 16, 16), 5)
    assert count_features(dict(built.named_parameters())) == head_inputs(built.head)
    with pytest.raises(InputError, match="expected a head with weights"):
        count_features({"body.0.weight": torch.zeros(1)})


def test_bad_options_are_one_line():
    for spec in ("fedgen(alpha=-1)", "fedgen(decay=0)", "fedgen(gen_batch=1)", "fedgen(gen_lr=0)", "fedgen(noise=0)"):
        with pytest.raises(InputError):
            methods.build(spec)
