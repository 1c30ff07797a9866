"""The networks that a result gives: the global one, and each client's own with the accuracy of its test."""

import json
import threading

import pytest
import torch

import unskew
from awkward import DATA, config
from unskew.base import storage
from unskew.base.errors import InputError
from unskew.core.method import Method, methods
from unskew.report.comparison import table
from unskew.runs import building, comparison, engine
from unskew.runs.client_store import StateStore
from unskew.runs.config import from_table
from unskew.runs.state_file import NAME

ROUNDS = {"rounds": 3, "sample": 0.4}
"""Two of five clients a round: some are never visited."""


@methods.register("test_ensemble")
class Ensemble(Method):
    """Predicts by two passes."""

    output = "personal"
    personal = ("head.*",)

    def predict(self, c, params, x):
        return c.forward(params, x, "eval").logits + c.forward(c.initial["model"], x, "eval").logits


@methods.register("test_both")
class Both(Method):
    """A global model, and heads of the clients' own beside it."""

    output = "both"

    def keep(self, c, params):
        return {**super().keep(c, params), "head": {name: params[name] for name in params if name.startswith("head.")}}

    def init_client(self, c):
        return {"head": {name: c.initial["model"][name] for name in c.names.params if name.startswith("head.")}}

    def personalise(self, c):
        return {**c.received["model"], **c.state["head"]}


def measure_accuracy(result, client):
    """The accuracy of the client's model on its own test data."""
    prepared = building.prepare(result.run, dataset=DATA)
    data = prepared.task.federation.local_test(client)
    model = result.client_model(client)
    assert not model.training
    with torch.no_grad():
        right = torch.cat([model(part.x).logits.argmax(1) == part.y for part in data.passes(1000)])
    return float(right.double().mean())


def client_tests(folder):
    rows = [json.loads(line) for line in (folder / "clients.jsonl").read_text().splitlines()]
    return {row["client"]: row["accuracy"] for row in rows if row["round"] == 3 and "accuracy" in row}


SPECS = (
    "fedper", "fedper(evaluate=own)", "fedper(division=layers(patterns=['body.0.*', '@norm']))",
    "fedper(division=channels(share=0.5, grow=2))", "fedas", "fedas(evaluate=received)", "finetuned(fedper)", "fedavg",
    "finetuned(fedavg, epochs=2)", "fedetf", "test_both", "finetuned(test_both)", "scaffold",
)  # fmt: skip


@pytest.mark.parametrize("buffers", ["average", "local", "reset"])
@pytest.mark.parametrize("spec", SPECS)
def test_a_client_s_model_has_the_accuracy_of_its_row(spec, buffers, tmp_path):
    local = {"batch": 8, "epochs": 2, "lr": 0.05, "momentum": 0.5, "buffers": buffers}
    run = config(spec, **ROUNDS, local=local, evaluation={"local_test": "holdout"})
    in_folder = engine.run(run, tmp_path / "run", dataset=DATA)
    found = client_tests(tmp_path / "run")
    assert len(found) >= 4
    assert {client: measure_accuracy(in_folder, client) for client in found} == found


@pytest.mark.parametrize("spec", ["fedper", "fedas", "finetuned(fedper)"])
def test_in_memory_resumed_and_paged_give_the_same_models(spec, tmp_path, monkeypatch):
    run = config(spec, **ROUNDS)
    in_folder = engine.run(run, tmp_path / "run", dataset=DATA)
    results = [in_folder, engine.run(run, dataset=DATA), engine.resume(tmp_path / "run", dataset=DATA)]
    page_everything(monkeypatch)
    results.append(engine.run(run, dataset=DATA))
    for client in range(5):
        models = [dict(result.client_model(client).state_dict()) for result in results]
        assert all(storage.encode({"": own}) == storage.encode({"": models[0]}) for own in models)


def page_everything(monkeypatch):
    """Clients' states leave memory at once."""
    plain = StateStore.__init__
    tiny = lambda self, folder=None, limit=0, name=NAME: plain(self, folder, 1, name)  # noqa: E731
    monkeypatch.setattr(StateStore, "__init__", tiny)


def test_a_thread_may_ask_for_a_model(monkeypatch):
    page_everything(monkeypatch)
    result = engine.run(config("fedper", **ROUNDS), dataset=DATA)
    found = []
    thread = threading.Thread(target=lambda: found.append(result.client_model(3).state_dict()))
    thread.start()
    thread.join()
    expected = result.client_model(3).state_dict()
    assert all(torch.equal(found[0][name], value) for name, value in expected.items())


def test_a_personal_method_has_no_model_for_all(tmp_path):
    result = engine.run(config("fedper"), tmp_path / "run", dataset=DATA)
    with pytest.raises(InputError, match=r"nobody uses the one at the server as it is; .*result\.client_model\(0\)"):
        result.model()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["unused_parameters"] == ["head.weight", "head.bias"]
    notes = storage.read_notes((tmp_path / "run" / "model.safetensors").read_bytes())
    assert notes["unused_parameters"] == ["head.weight", "head.bias"]
    other = engine.run(config("fedavg"), tmp_path / "global", dataset=DATA)
    assert "unused_parameters" not in other.summary and other.model() is not None


@pytest.mark.parametrize("client", [5, -1, 1.0, "1", True, None])
def test_a_client_that_is_not_there_is_refused(client):
    result = engine.run(config("fedper"), dataset=DATA)
    with pytest.raises(InputError, match="expected a client from 0 to 4, got"):
        result.client_model(client)


def test_what_is_more_than_a_network_is_refused():
    result = engine.run(config("test_ensemble"), dataset=DATA)
    with pytest.raises(InputError, match="test_ensemble predicts by more than its network"):
        result.client_model(1)


@pytest.mark.parametrize("buffers", ["average", "local", "reset"])
def test_the_global_model_has_the_accuracy_of_its_row(buffers):
    local = {"batch": 8, "epochs": 2, "lr": 0.05, "buffers": buffers}
    result = engine.run(config("fedavg", local=local), dataset=DATA)
    data = building.prepare(result.run, dataset=DATA).task.federation.common("test", 0, 60)
    with torch.no_grad():
        right = torch.cat([result.model()(part.x).logits.argmax(1) == part.y for part in data.passes(1000)])
    assert float(right.double().mean()) == result.accuracy


def test_a_client_s_model_needs_the_folder(tmp_path):
    result = engine.run(config("fedper"), tmp_path / "run", dataset=DATA)
    (tmp_path / "run").rename(tmp_path / "moved")
    with pytest.raises(InputError, match="client_model needs the run's folder"):
        result.client_model(1)


def test_a_method_with_both_shows_both(tmp_path):
    base = from_table({"clients": 4, "split": "iid", "model": "mlp", "rounds": 3, "execution": {"executor": "serial"}})
    chosen = [methods.build(text) for text in ("fedavg", "test_both", "fedper")]
    cells = comparison.compare(base, chosen, [0], tmp_path)
    summary = cells[1].summary
    assert summary["accuracy_of"] == "global model; personal_accuracy: clients' own models, pooled"
    pooled = [row["personal"]["pooled"] for row in cells[1].rounds if row["round"]]
    assert summary["personal_accuracy"]["last"] == pooled[-1] != summary["accuracy"]["last"]
    made = table(cells, "t")
    place = made.columns.index("personal %")
    shown = {name: cells[place].values for name, cells in made.rows}
    assert shown == {
        "fedavg": (100 * cells[0].summary["personal"]["pooled"],),
        "test_both": (100 * pooled[-1],), str(chosen[2]): (100 * cells[2].summary["accuracy"]["last"],),
    }  # fmt: skip
    assert made.tag("test_both") == "" and made.tag(str(chosen[2])) == " (personal)"


def test_unskew_run_shows_both_figures(tmp_path, capsys):
    from unskew.cli.output import show_result

    result = unskew.run("test_both", clients=4, split="iid", model="mlp", rounds=1, executor="serial")
    show_result(result.summary, tmp_path, as_json=False)
    text = capsys.readouterr().out
    assert "accuracy, last" in text and "clients' own models, last" in text
