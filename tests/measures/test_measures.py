"""Measures: golden numbers, exact identities, and runs that record them without being changed by them."""

import json

import pytest
import torch
from torch import nn
from torch.func import functional_call

from awkward import DATA, config, play, rows_without_times
from support import golden, golden_names
from unskew.base.errors import InputError
from unskew.base.process import steady
from unskew.core.jobs import Job, Reply
from unskew.core.method import Method, methods
from unskew.core.net import Names
from unskew.core.reducers import concat
from unskew.measures import features, hessian, steps, updates
from unskew.measures.base import Look, measures, some_test
from unskew.measures.models import RoundsTo
from unskew.methods.flfa.selection import similarity, skewness
from unskew.models.base import Model
from unskew.report.comparison import table
from unskew.runs import building, engine
from unskew.runs.comparison import CellResult, compare
from unskew.runs.config import from_table
from unskew.runs.folder import RunFolder

ALL = [*(name for name in measures if not name.startswith("test_"))]
QUICK = ["hessian(samples=20, top=2, most=30, every=2)" if name == "hessian" else name for name in ALL]


def double(values):
    return torch.tensor(values, dtype=torch.float64)


def fed(reducer, trees, stacked=False):
    """A reducer that has seen these clients, one by one or as a stack."""
    if stacked:
        reducer.add_stack({name: torch.stack([tree[name] for tree in trees]) for name in trees[0]}, [1.0] * len(trees))
    else:
        for client, tree in enumerate(trees):
            reducer.add(tree, Reply(client, weight=float(client + 1)))
    return reducer


class S:
    """What a reducer needs of the server."""

    def __init__(self, *layers):
        self.names = Names((), frozenset(), frozenset(), (), layers)
        self.trainable = tuple(f"{layer}.weight" for layer in layers)


# ------------------------------------------------------------------------------------------ golden


@pytest.mark.parametrize("name", golden_names("metrics*"))
def test_features_of_the_golden_file(name):
    file = golden(name)
    x, y = double(file.inputs["features"]), torch.tensor(file.inputs["y"])
    found = {
        **features.separability(x, y),
        **features.collapse(x, y),
        "erank_covariance": features.effective_rank(x),
        "erank_correlation": features.correlation_rank(x),
    }
    theirs = {"nc1_trace_pinv": "nc1_trace_pinv_over_C", "nc2_gram": "nc2_gram_frobenius"}
    for key, value in found.items():
        assert value == pytest.approx(file.expected[theirs.get(key, key)], rel=file.rtol, abs=file.atol), key


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("name", golden_names("metrics*"))
def test_drift_of_the_golden_file(name, stacked):
    file = golden(name)
    trees = [{"a": double(own[:2]), "b": double(own[2:])} for own in file.inputs["updates"]]
    seen = fed(updates.Updates(None), trees, stacked)
    assert updates.local_drift(seen) == pytest.approx(file.expected["local_drift"], rel=file.rtol, abs=file.atol)


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("name", golden_names("flfa_layer_selection*"))
def test_layer_similarity_of_the_golden_file(name, stacked):
    file = golden(name)
    for case, given in file.inputs["cases"].items():
        order, own = given["order"], given["updates"]
        clients = range(len(own[0]))
        trees = [{f"{layer}.weight": double(own[at][k]) for at, layer in enumerate(order)} for k in clients]
        z = fed(similarity(S(*order)), trees, stacked).result()
        z = {layer: float(value) for layer, value in z.items()}
        expected = file.expected[case]
        assert list(z) == order
        assert list(z.values()) == pytest.approx(expected["z"], rel=file.rtol, abs=file.atol), case
        assert skewness(list(z.values())) == pytest.approx(expected["skewness"], rel=file.rtol, abs=file.atol), case


# ------------------------------------------------------------------------------------------ by hand


def test_divergence_by_hand():
    # updates (3, 4), (0, 0), (3, 0): norms 5, 0, 3; distances 5, 4, 3
    trees = [{"w": double(values)} for values in ([3, 4], [0, 0], [3, 0])]
    to_global, mutual = updates.weight_divergence(fed(updates.Updates(None), trees))
    assert to_global == pytest.approx(8 / 3) and mutual == pytest.approx(4)
    assert updates.weight_divergence(fed(updates.Updates(None), trees[:1])) == (5.0, None)


def test_a_name_that_was_not_sent_did_not_move():
    sparse = [{"a": double([1.0]), "b": double([2.0])}, {"a": double([3.0])}]
    dense = [sparse[0], {**sparse[1], "b": double([0.0])}]
    found = [updates.local_drift(fed(updates.Updates(None), trees)) for trees in (sparse, dense)]
    assert found[0] == found[1] == pytest.approx(2**0.5)


def test_updates_look_the_same_in_blocks(monkeypatch):
    trees = [
        {"w": torch.randn(7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(k))} for k in range(3)
    ]
    whole = fed(updates.Updates(None), trees)
    expected = [updates.local_drift(whole), *updates.weight_divergence(whole)]
    monkeypatch.setattr(updates, "_BLOCK", 12)
    assert [updates.local_drift(whole), *updates.weight_divergence(whole)] == pytest.approx(expected)


def test_equal_updates_agree_and_opposite_ones_count_zero():
    assert fed(similarity(S("l")), [{"l.weight": double([[1, 2]])}] * 3).result() == {"l": pytest.approx(1)}
    opposite = [{"l.weight": double([[1, 2]])}, {"l.weight": double([[-1, -2]])}]
    assert fed(similarity(S("l")), opposite).result() == {"l": 0.0}
    assert fed(similarity(S("l", "own")), opposite).result().keys() == {"l"}  # `own` does not travel


def test_a_simplex_is_a_collapse():
    simplex = double([[2, -1, -1], [-1, 2, -1], [-1, -1, 2]])
    found = features.collapse(simplex.repeat(4, 1) + 5, torch.arange(3).repeat(4))
    assert found == pytest.approx(dict.fromkeys(found, 0.0), abs=1e-12)


def test_rank_of_so_many_equal_directions():
    x = torch.cat([torch.eye(4, dtype=torch.float64), -torch.eye(4, dtype=torch.float64)])
    assert features.effective_rank(x) == pytest.approx(4)
    dead = torch.cat([x, torch.full((8, 3), 7.0, dtype=torch.float64)], 1)  # units that never change
    assert features.effective_rank(dead) == pytest.approx(4) == features.correlation_rank(dead)
    assert features.effective_rank(dead[:, 4:]) == 0 == features.correlation_rank(dead[:, 4:])


def test_figures_that_are_not_defined_are_none():
    one_class, same = torch.zeros(3, dtype=torch.int64), torch.ones(3, 2, dtype=torch.float64)
    assert features.separability(same, one_class) == {"intra": 0.0, "inter": None, "separability": None}
    assert set(features.collapse(same, one_class).values()) == {None}
    two = features.collapse(same, torch.tensor([0, 1, 1]))
    assert two["nc1_trace_pinv"] is None is two["nc1_trace_ratio"] and two["nc2_normalised"] is None
    diverged = torch.full((3, 2), torch.nan, dtype=torch.float64)
    for name in ("separability", "rank", "collapse"):
        assert set(measures.build(name).of(diverged, torch.tensor([0, 1, 1])).values()) == {None}


def test_the_cosine_of_rounding_is_zero():
    ahead = {"w": torch.tensor([1.0, 0.0])}
    assert steps.cosine(ahead, {"w": torch.tensor([1.0, 1.0])}).item() == pytest.approx(0.5**0.5)
    assert steps.cosine(ahead, {"w": torch.tensor([1e-8, 0.0])}).item() == 0
    assert steps.cosine({"w": torch.zeros(2)}, {"w": torch.zeros(2)}).item() == 0


def test_rounds_to_counts_rounds_not_tests():
    rows = [{"round": number, "accuracy": value} for number, value in ((0, 0.9), (5, 0.4), (10, 0.6), (15, 0.5))]
    assert RoundsTo(targets=(0.4, 0.5, 0.7)).overall(rows) == {"rounds_to": {"0.4": 5, "0.5": 10, "0.7": None}}
    personal = [{"round": 0}, {"round": 1}, {"round": 2, "personal": {"pooled": 0.8}}]
    assert RoundsTo(targets=(0.8,)).overall(personal) == {"rounds_to": {"0.8": 2}}


# ------------------------------------------------------------------------------------------ hessian


@pytest.mark.parametrize(("size", "basis"), [(6, 24), (60, 12)])
def test_lanczos_on_known_eigenvalues(size, basis):
    rng = torch.Generator().manual_seed(0)
    q, _ = torch.linalg.qr(torch.randn(size, size, dtype=torch.float64, generator=rng))
    values = torch.cat([torch.tensor([-30.0, 9, 8, 7.5, 5, 4.9]), torch.linspace(-2, 2, size - 6)]).double()
    matrix = q @ values.diag() @ q.T
    start = torch.randn(size, dtype=torch.float64, generator=rng)
    found = hessian.top_eigenvalues(lambda v: matrix @ v, start, 5, basis=basis, tolerance=1e-9)
    assert found == pytest.approx([9, 8, 7.5, 5, 4.9], rel=1e-7)


def test_the_product_is_that_of_the_exact_hessian():
    task = task_of(config("fedavg", model="mlp(hidden=[2])"))
    net = task.net.module.double()
    assert isinstance(net, Model) and not any(isinstance(module, nn.BatchNorm2d) for module in net.modules())
    params = {name: value.double() for name, value in task.initial["model"].items()}
    data = some_test(task, 17)
    c = task.client_context(Job("test", 0, -1, {"model": params, "buffers": {}}), data)
    x, y = next((batch.x.double(), batch.y) for batch in data.passes(100))
    flat = torch.cat([params[name].flatten() for name in task.trainable])

    def loss(vector):
        parts_ = vector.split([params[name].numel() for name in task.trainable])
        tree = {name: part.view_as(params[name]) for name, part in zip(task.trainable, parts_, strict=True)}
        return nn.functional.cross_entropy(functional_call(net, tree, (x,)).logits, y)

    exact = torch.autograd.functional.hessian(loss, flat, vectorize=True)

    class Doubled:
        def passes(self, batch):
            for part in data.passes(batch):
                yield part._replace(x=part.x.double())

        def __len__(self):
            return len(data)

    product = hessian.hessian_product(c, params, Doubled(), 9)  # several batches make up the mean
    vector = torch.randn(len(flat), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(product(vector), exact @ vector)
    with steady(1):
        found = hessian.top_eigenvalues(product, vector, 5, tolerance=1e-6)
    expected = torch.linalg.eigvalsh(exact).flip(0)[:5].tolist()
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-9)


# ------------------------------------------------------------------------------------------ in runs


def task_of(run):
    return building.prepare(run, dataset=DATA).task


def test_runs_record_every_measure_and_are_not_changed_by_them(tmp_path, caplog):
    options = {"rounds": 3, "dropout": 0.3, "measure": QUICK}
    fixed = {"memory_format": "contiguous", "checkpoint_every": 1}
    serial = play("scaffold", tmp_path / "serial", execution=fixed, **options)
    plain = play("scaffold", execution=fixed, **{**options, "measure": []})
    assert all(torch.equal(serial.server["model"][name], value) for name, value in plain.server["model"].items())
    assert serial.run.hash == plain.run.hash
    last = serial.rounds[-1]["measures"]
    assert last.keys() >= {
        "drift", "divergence", "divergence_mutual", "similarity", "similarity_mean", "similarity_skewness", "intra",
        "inter", "separability", "rank_covariance", "rank_correlation", "nc1_trace_pinv", "nc1_trace_ratio",
        "nc2_gram", "nc2_normalised", "orthogonality", "proximal_loss", "fisher_trace", "local_accuracy",
        "forgetting", "hessian_1", "hessian_2", "hessian_ratio",
    }  # fmt: skip
    assert all(value is not None for value in last.values())
    assert "hessian_1" not in serial.rounds[1]["measures"] and "hessian_1" in serial.rounds[2]["measures"]
    assert serial.summary["measures"]["rounds_to"].keys() == {"0.5", "0.6", "0.7", "0.8", "0.9"}
    assert "measures" not in plain.rounds[-1] and "measures" not in plain.summary

    pool = play("scaffold", execution={**fixed, "executor": "pool", "workers": 2}, **options)
    assert rows_without_times(pool) == rows_without_times(serial)

    def stop_after_two(row):
        if row["round"] == 2:
            raise KeyboardInterrupt

    run = config("scaffold", execution=fixed, **options)
    with pytest.raises(KeyboardInterrupt):
        engine.run(run, tmp_path / "cut", dataset=DATA, watch=stop_after_two)
    resumed = engine.resume(tmp_path / "cut", dataset=DATA)
    assert rows_without_times(resumed) == rows_without_times(serial)
    assert resumed.summary["measures"] == serial.summary["measures"]


def client_rows(folder):
    """What was noted of each visit, by round and client."""
    rows = (row for row in RunFolder(folder).client_rows() if row.get("used"))
    noted = ("orthogonality", "proximal_loss", "fisher_trace", "local_accuracy")
    return {(row["round"], row["client"]): {name: row[name] for name in noted if name in row} for row in rows}


@pytest.mark.parametrize("chunk", [2, 5])
def test_stacked_clients_are_measured_as_if_alone(chunk, tmp_path, caplog):
    measure = "drift,divergence,similarity,orthogonality(every=2),fisher,local_accuracy"
    options = {"rounds": 1, "measure": measure, "local": {"batch": 8, "epochs": 2, "lr": 0.05}}
    serial = play("fedavg", tmp_path / "serial", execution={"memory_format": "contiguous"}, **options)
    stacked = play("fedavg", tmp_path / "stacked", execution={"executor": "stacked", "chunk": chunk}, **options)
    assert "one by one" not in caplog.text
    mine, theirs = client_rows(tmp_path / "stacked"), client_rows(tmp_path / "serial")
    assert mine.keys() == theirs.keys()
    for key, row in mine.items():
        assert row == pytest.approx(theirs[key], rel=1e-3, abs=1e-4), key
        assert "fisher_trace" in row and "local_accuracy" in row
    ours, reference = (result.rounds[1]["measures"] for result in (stacked, serial))
    assert ours.pop("similarity") == pytest.approx(reference.pop("similarity"), rel=1e-3, abs=1e-4)
    assert ours == pytest.approx(reference, rel=1e-3, abs=1e-4)


def test_compiled_steps_are_watched_too(caplog):
    options = {"rounds": 1, "measure": "orthogonality,fisher", "model": "mlp(hidden=[4])"}
    compiled = play("fedavg", execution={"executor": "stacked", "compile": True, "chunk": 5}, **options)
    assert "a measure watches every step" in caplog.text
    stacked = play("fedavg", execution={"executor": "stacked", "chunk": 5}, **options)
    assert compiled.rounds[1]["measures"] == pytest.approx(stacked.rounds[1]["measures"], rel=1e-4)


@methods.register("test_with_dropout")
class WithDropout(Method):
    """FedAvg on a body with BatchNorm whose features are dropped at random."""

    def remodel(self, model, num_classes):
        return Model(nn.Sequential(model.body, nn.Dropout(0.3)), model.head)


@pytest.mark.parametrize("executor", ["serial", "stacked"])
def test_dropout_and_batchnorm_statistics_are_left_alone(executor):
    for policy in ("average", "local", "reset"):
        local = {"batch": 8, "epochs": 2, "lr": 0.05, "buffers": policy}
        options = {"local": local, "execution": {"executor": executor, "memory_format": "contiguous"}}
        watched = play("test_with_dropout", measure="orthogonality,fisher,local_accuracy,rank", **options)
        plain = play("test_with_dropout", **options)
        for group in ("model", "buffers"):
            assert all(torch.equal(watched.server[group][name], v) for name, v in plain.server[group].items())


@methods.register("test_no_delta")
class NoDelta(Method):
    """Clients send one feature each; models are never merged."""

    stackable = False
    reducers = {"data": concat}

    def train(self, c, params):
        return params

    def upload(self, c, params):
        return {"data": {"x": torch.zeros(1, 1)}}

    def update(self, s, server, merged):
        return server


@methods.register("test_own_heads")
class OwnHeads(Method):
    """Personal heads."""

    personal = ("head.*",)
    output = "personal"


def test_what_a_method_does_not_give_is_said_once(caplog):
    result = play("test_no_delta", measure="drift,similarity,orthogonality,rank")
    assert result.rounds[-1]["measures"].keys() == {"rank_covariance", "rank_correlation"}
    said = [record.getMessage() for record in caplog.records if "nothing to record" in record.getMessage()]
    assert len(said) == 3 and all("test_no_delta" in text for text in said)
    caplog.clear()
    result = play("test_own_heads", measure="drift,rank,forgetting,hessian,local_accuracy")
    assert result.rounds[-1]["measures"].keys() == {"drift", "local_accuracy"}
    assert caplog.text.count("personal models only") == 3


def test_a_projector_is_looked_at_too():
    class Projecting(nn.Module):
        def __init__(self):
            super().__init__()
            self.projector = nn.Linear(4, 3)

        def forward(self, x):
            return self.projector(x) * 2

    @methods.register("test_projecting")
    class ProjectingMethod(Method):
        """A head that projects."""

        def remodel(self, model, num_classes):
            return Model(nn.Sequential(nn.Flatten(), nn.Linear(32, 4)), Projecting())

    last = play("test_projecting", measure="rank,separability(space=projector)").rounds[-1]["measures"]
    assert last.keys() == {
        "rank_covariance", "rank_correlation", "projector_rank_covariance", "projector_rank_correlation",
        "projector_intra", "projector_inter", "projector_separability",
    }  # fmt: skip
    assert 0 < last["projector_rank_covariance"] <= 3 and last["rank_covariance"] <= 4


def test_features_are_those_of_the_samples_chosen_by_the_seed():
    task = task_of(config("fedavg"))
    some, again = some_test(task, 10), some_test(task, 10)
    assert torch.equal(some.index, again.index) and len(some.index.unique()) == 10
    assert len(some_test(task, 1000)) == len(DATA.test)
    server = task.method.init(task.server_context(0))
    look = Look(task, server, 0, False, True, {"round": 0}, [], [])
    spaces, y = look.features(10)
    assert spaces["extractor"][""].shape[0] == 10 and torch.equal(y, DATA.test.y[some.index])
    assert look.due(0) and look.due(5) and not Look(task, server, 3, False, True, {}, [], []).due(2)


def test_a_round_in_which_nobody_replies_has_no_drift():
    result = play("fedavg", rounds=4, dropout=0.9, seed=1, measure="drift,fisher")
    empty = [row for row in result.rounds[1:] if len(row["dropped"]) == 5]
    assert empty and all(row["measures"] == {} for row in empty)


# ------------------------------------------------------------------------------------------ options


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"measure": "drft"}, "did you mean drift"),
        ({"measure": "drift(x=1)"}, "drift has no argument 'x'"),
        ({"measure": "rank(samples=1)"}, "greater than or equal to 2"),
        ({"measure": "drift,drift"}, "named twice"),
        ({"measure": 3}, "expected names"),
        ({"measure": [3]}, "expected a measure"),
        ({"measure": "rank(space=projector)"}, "no head.projector"),
        ({"measure": "rounds_to(targets=[90])"}, "shares of 1"),
        ({"measure": "rounds_to(targets=[])"}, "shares of 1"),
        ({"measure": "rank", "pool_test": True, "evaluation": {"local_test": "holdout"}}, "pool_test"),
    ],
)
def test_bad_measures_are_one_clear_line(options, said, tmp_path):
    with pytest.raises(InputError, match=said):
        play("fedavg", tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_text_lists_and_tables_build_the_same():
    forms = ["drift,rank(samples=50)", ["drift", "rank(samples=50)"], ["drift", {"name": "rank", "samples": 50}]]
    built = [from_table({"measure": form}).measure for form in forms]
    assert built[0] == built[1] == built[2] and [m.name for m in built[0]] == ["drift", "rank"]
    assert from_table({"measure": built[0][0]}).measure == built[0][:1]


def test_run_toml_keeps_them_and_the_hash_does_not(tmp_path):
    play("fedavg", tmp_path / "run", measure="drift,rank(samples=50)")
    _, again = RunFolder.open(tmp_path / "run")
    assert [str(measure) for measure in again.measure] == ["drift", "rank(samples=50)"]
    assert again.hash == config("fedavg").resolve(DATA).hash
    assert json.loads((tmp_path / "run/summary.json").read_text())["measures"].keys() >= {"drift", "rank_covariance"}


def test_a_comparison_says_which_finished_runs_were_not_measured(tmp_path, caplog):
    wanted = [methods.build("fedavg")]
    compare(config("fedavg"), wanted, [0], tmp_path, dataset=DATA)
    compare(config("fedavg", measure="drift"), wanted, [0], tmp_path, dataset=DATA)
    assert "without measure drift" in caplog.text


def test_a_comparison_shows_rounds_to_a_target():
    def cell(method, seed, rounds):
        summary = {
            "accuracy": {"last": 0.5}, "personal": None, "seconds": {"clients": 1.0}, "bytes_up": 1, "bytes_down": 1,
            "diverged": False, "rounds": 30, "measures": {"rounds_to": {"0.9": rounds}},
        }  # fmt: skip
        return CellResult(method, seed, None, summary, [], False)

    cells = [cell("a", 0, 20), cell("b", 0, 10), cell("a", 1, 30), cell("b", 1, None), cell("c", 0, None)]
    shown = table([*cells, cell("c", 1, None)], "title")
    assert shown.columns[-2:] == ("rounds to 90 %", "speed-up to 90 %")
    values = {name: [own.values for own in row[-2:]] for name, row in shown.rows}
    assert values == {"a": [(20, 30), (1, 1)], "b": [(10,), (2,)], "c": [(), ()]}
    assert any("within 30 rounds" in note for note in shown.notes)
