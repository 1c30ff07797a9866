"""Numbers that are not finite: the server's end the run with its last finite model, a client's leave it out."""

import json

import pytest
import torch
from safetensors.torch import load_file

import unskew
from small_runs import make, play, said
from unskew.base import storage, tree
from unskew.base.errors import InputError, SlotError
from unskew.base.registry import param
from unskew.core import reducers
from unskew.core.method import Method, methods
from unskew.report.comparison import table
from unskew.report.curves import plot_curves
from unskew.runs import comparison
from unskew.runs.config import from_table

QUICK = {"clients": 4, "split": "iid", "model": "mlp", "rounds": 5, "executor": "serial", "lr": 0.05}
NAN = float("nan")


@methods.register("test_breaks")
class Breaks(Method):
    """A slot of the server gives NaN in one round."""

    slot: str = param(default="update", doc="which slot")
    at: int = param(default=3, doc="in which round; the slot init: whenever that is 0")
    seed: int = param(default=-1, doc="only under this seed; -1: always")

    survey_reducers = {"count": reducers.total}

    def _spoil(self, s, slot, server):
        if (slot, s.round) != (self.slot, self.at) or self.seed not in (-1, s.seed):
            return server
        return {**server, "extra": {"x": torch.tensor([1.0, NAN])}}

    def init(self, s):
        return self._spoil(s, "init", super().init(s))

    def survey(self, c):
        return {"count": {"n": c.num_samples.float()}}

    def digest(self, s, server, surveyed):
        return self._spoil(s, "digest", server)

    def update(self, s, server, merged):
        if (self.slot, self.at) == ("per_client", s.round):
            s.per_client.put(2, {"seen": {"x": torch.tensor(float("inf"))}})
        return self._spoil(s, "update", super().update(s, server, merged))


@methods.register("test_keeps_nan")
class KeepsNan(Method):
    """One client's state turns out not to be finite in one round; its reply is."""

    def keep(self, c, params):
        spoilt = (torch.as_tensor(c.client) == 1) & torch.tensor(c.round == 2)
        return {"mine": {"rounds": torch.where(spoilt, NAN, float(c.round))}}

    def upload(self, c, params):
        known = c.state["mine"]["rounds"] if c.state else torch.zeros(())
        return {**super().upload(c, params), "last": {"round": known}}

    def init_client(self, c):
        return {"mine": {"rounds": torch.zeros(())}}

    reducers = {**Method.reducers, "last": reducers.total}


@methods.register("test_huge")
class Huge(Method):
    """Finite parameters whose logits overflow."""

    def update(self, s, server, merged):
        return {**server, "model": tree.scale(server["model"], 1e30 if s.round == 2 else 1.0)}


def bits(groups):
    return storage.encode(groups)


@pytest.mark.parametrize(
    ("slot", "where"),
    [("digest", "group 'extra'"), ("update", "group 'extra'"), ("per_client", "s.per_client of client 2")],
)
@pytest.mark.parametrize("executor", ["serial", "pool", "stacked"])
def test_the_server_s_nan_ends_the_run_with_its_last_finite_model(tmp_path, caplog, slot, where, executor):
    options = {**QUICK, "executor": executor}
    method = f"test_breaks(slot={slot})"
    whole = unskew.run("test_breaks(at=99)", **{**options, "rounds": 2})
    result = unskew.run(method, **options, out=tmp_path / "run")
    assert result.diverged and not whole.diverged
    assert bits(result.server) == bits(whole.server) and bits(result.published) == bits(whole.published)
    for name, value in result.model().named_parameters():
        assert torch.equal(value, whole.published["model"][name])
    saved = load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(saved[f"model/{name}"], value) for name, value in whole.published["model"].items())
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["diverged"] is True and summary["diverged_in"] == 3 and summary["rounds"] == 3
    slot = "update" if slot == "per_client" else slot
    assert summary["stopped"] == f"test_breaks.{slot} gave the server NaN or infinite numbers ({where})"
    rows = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == [0, 1, 2, 3]
    assert rows[-1]["diverged"] and rows[-1]["stopped"] == summary["stopped"]
    assert rows[-1]["accuracy"] == rows[-2]["accuracy"] == result.accuracy
    said = [r.getMessage() for r in caplog.records if "diverged" in r.getMessage()]
    assert len(said) == 1 and said[0].startswith("round 3: ") and where in said[0] and "lower lr" in said[0]
    again = unskew.resume(tmp_path / "run")
    assert again.diverged and bits(again.server) == bits(result.server) and len(again.rounds) == 4


def test_a_first_state_that_is_not_finite_is_refused_before_there_is_a_folder(tmp_path):
    with pytest.raises(InputError, match=r"test_breaks\.init gave the server NaN .*\(group 'extra'\)"):
        unskew.run("test_breaks(slot=init, at=0)", **QUICK, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_that_stopped_before_its_first_test_is_tested(tmp_path):
    result = unskew.run("test_breaks(at=2)", **QUICK, eval_every=5)
    assert result.rounds[-1]["round"] == 2 and result.rounds[-1]["accuracy"] == result.accuracy


@pytest.mark.parametrize("wire", ["", "quantise(bits=8)"])
@pytest.mark.parametrize("executor", ["serial", "pool", "stacked"])
def test_a_client_that_would_keep_nan_is_left_out_and_keeps_what_it_had(executor, wire, caplog):
    seen = {}

    class Sees(KeepsNan):
        name = "test_keeps_nan"

        def update(self, s, server, merged):
            seen[s.round] = float(merged["last"]["round"])
            return super().update(s, server, merged)

    more = {"wire": wire} if wire else {}
    result = unskew.run(Sees(), **{**QUICK, "executor": executor, "rounds": 3, **more})
    assert [row["excluded"] for row in result.rounds[1:]] == [[], [1], []]
    assert not result.diverged and tree.all_finite(result.server)
    assert "NaN or infinite values in what it keeps" in caplog.text
    assert seen[3] == pytest.approx(3 * 2 + 1, rel=0.05)  # three clients remember round 2, client 1 still round 1


def test_a_model_whose_constants_are_infinite_by_design_runs(caplog):
    class Masked(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.flat, self.fc = torch.nn.Flatten(), torch.nn.Linear(64, 10)
            self.register_buffer("mask", torch.tensor([0.0, -torch.inf]), persistent=False)

        def forward(self, x):
            return self.fc(self.flat(x) + self.mask[0])

    options = {**QUICK, "model": Masked(), "head": "fc", "rounds": 2}
    assert not unskew.run(**options).diverged and "NaN" not in caplog.text


def test_no_finite_reply_is_divergence_and_the_run_goes_on():
    result = unskew.run(**{**QUICK, "lr": 1e30, "rounds": 3})
    assert result.diverged and result.summary["stopped"] is None and len(result.rounds) == 4


def test_a_loss_that_is_not_finite_is_divergence_and_valid_json(tmp_path, caplog):
    result = unskew.run("test_huge", **{**QUICK, "rounds": 2}, out=tmp_path / "run")
    assert result.diverged and result.summary["diverged_in"] == 2 and tree.all_finite(result.server)
    assert "a loss in the tests is not finite" in caplog.text
    for name in ("rounds.jsonl", "clients.jsonl"):
        for line in (tmp_path / "run" / name).read_text().splitlines():
            json.loads(line, parse_constant=lambda found: pytest.fail(found))


def test_a_diverged_cell_is_a_marked_row_that_is_not_ranked(tmp_path):
    base = from_table({"clients": 4, "split": "iid", "model": "mlp", "rounds": 4, "execution": {"executor": "serial"}})
    chosen = [methods.build(text) for text in ("fedavg", "test_breaks(at=2, seed=1)", "fedprox(mu=1)")]
    cells = comparison.compare(base, chosen, [0, 1], tmp_path)
    assert [len(cell.rounds) for cell in cells] == [5, 5, 5, 5, 3, 5]
    made = table(cells, "t")
    assert made.tag(cells[1].method) == " (diverged)" and made.tag("fedavg") == ""
    marks = {name: {cell.mark for cell in row} for name, row in made.rows}
    assert marks[cells[1].method] == {""} and "best" in marks["fedavg"] | marks["fedprox(mu=1.0)"]
    name = cells[1].method
    assert f"{name}, seed 1: diverged in round 2 and stopped there" in "\n".join(made.notes)
    curves = {
        name: [[(row["round"], row["accuracy"]) for row in cell.rounds] for cell in cells if cell.method == name]
        for name, _ in made.rows
    }
    plot_curves(curves, tmp_path / "curves.png", "t")
    assert all(cell.reused for cell in comparison.compare(base, chosen, [0, 1], tmp_path))


# ------------------------------------------------------------------------------------------- what spoils the first step


def term(value):
    return make("terms", unskew.Term, __call__=lambda self, c, params, batch, out: value(params, out))


SPOILING = {
    "gives nan in the first step": lambda params, out: out.logits.sum() * float("nan"),
    "gives inf in the first step": lambda params, out: out.logits.square().sum() / 0,
    "has a gradient of NaN or infinite values": lambda params, out: (0 * out.logits).square().sum().sqrt(),
}


@pytest.mark.parametrize("executor", ["serial", "pool", "stacked"])
@pytest.mark.parametrize("line", SPOILING)
def test_the_term_that_spoils_the_first_step_is_named(line, executor):
    name = term(SPOILING[line])
    with pytest.raises(SlotError, match=rf"client \d failed in round 1: term {name} {line}"):
        play(method=f"fedavg(terms=[{name}])", executor=executor)


@pytest.mark.parametrize("slot", ["criterion", "correction"])
def test_the_slot_that_spoils_the_first_step_is_named(slot):
    bodies = {
        "criterion": lambda self, c, out, batch: out.logits.sum() * float("nan"),
        "correction": lambda self, c, params, batch: {name: value * float("inf") for name, value in params.items()},
    }
    name = make("methods", unskew.Method, **{slot: bodies[slot]})
    with pytest.raises(SlotError, match=rf"{name}.{slot} gives"):
        play(method=name)


def test_a_diverging_rate_is_no_fault_of_a_term(caplog):
    name = term(lambda params, out: out.features.square().mean())
    result = play(method=f"fedavg(terms=[{name}])", lr=1e30, rounds=2)
    assert result.summary["diverged"]


@pytest.mark.parametrize("executor", ["serial", "stacked"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_first_state_is_finite(value, executor):
    name = make("methods", unskew.Method, init_client=lambda self, c: {"own": {"a": torch.tensor([value])}})
    with pytest.raises(SlotError, match=rf"{name}.init_client must return a state of finite numbers.*'own/a'"):
        play(method=name, executor=executor)


# ----------------------------------------------------------------------------- what the server publishes and tests give


def test_a_publish_that_gives_nan_is_a_fault(tmp_path):
    def publish(self, s, server):
        model = tree.scale(server["model"], float("nan") if s.round == 2 else 1.0)
        return {**server, "model": model}

    name = make("methods", Method, publish=publish)
    with pytest.raises(SlotError, match=rf"in round 2: {name}.publish gives NaN or infinite numbers \(group 'model'\)"):
        play(method=name, out=tmp_path / "run")
    assert not (tmp_path / "run" / "model.safetensors").exists()


@pytest.mark.parametrize("slot", ["predict", "personalise"])
def test_nan_in_the_tests_points_to_the_slot(slot, caplog):
    def predict(self, c, params, x):
        return c.forward(params, x, "eval").logits * float("nan")

    def personalise(self, c):
        return tree.scale(c.received["model"], float("nan"))

    body = {"predict": predict} if slot == "predict" else {"personalise": personalise, "output": "personal"}
    name = make("methods", Method, **body)
    result = play(method=name)
    assert result.summary["diverged"]
    assert f"the run diverged; lower lr, or look at {name}.{slot}" in said(caplog)
