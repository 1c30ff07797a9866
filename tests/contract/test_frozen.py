"""Parameters that a network froze itself (`requires_grad=False`), in every registered method."""

import json

import pytest
import torch
from torch import nn

import unskew
from awkward import DATA, config, play, quick, rows_without_times
from support import STACKED_TOLERANCE, gap, initial_model, mark_slow, survey
from unskew.base.errors import InputError
from unskew.core.jobs import Job
from unskew.core.method import methods
from unskew.core.wrapper import Wrapper
from unskew.models.user_module import GivenModule
from unskew.runs import building, engine


class Net(nn.Module):
    """Two convolutions with BatchNorm; the first one and its BatchNorm's scale and shift are frozen."""

    def __init__(self, *frozen):
        super().__init__()
        torch.manual_seed(5)
        self.first, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.second, self.norm2 = nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.fc = nn.Linear(24, 3)
        nn.init.uniform_(self.norm.weight, 0.5, 1.5)
        for name in frozen:
            self.get_submodule(name).requires_grad_(False)

    def forward(self, x):
        x = nn.functional.relu(self.norm(self.first(x)))
        x = nn.functional.max_pool2d(nn.functional.relu(self.norm2(self.second(x))), 2)
        return self.fc(x.flatten(1))


def given(*frozen):
    return GivenModule.of(Net(*frozen), "fc")


@unskew.registries.terms.register("test_frozen_previous")
class Previous(unskew.Term):
    """Looks at the client's model after its last visit."""

    needs = ("previous",)

    def __call__(self, c, params, batch, out):
        return batch.mean((out.logits - c.predecessor(batch).logits).square().mean(1))


FIXED = {"body.first.weight", "body.first.bias", "body.norm.weight", "body.norm.bias"}
MODEL = given("first", "norm")
BYTES = 4 * (4 * 2 * 9 + 4 + 4 + 4)
HARD = {"weight_decay": 0.1, "momentum": 0.9, "batch": 8, "epochs": 2}
NAMES = [name for name in methods if not name.startswith("test_")]
SPECS = [
    *(f"{name}(fedprox(mu=0.1))" if issubclass(methods.get(name), Wrapper) else quick(name) for name in NAMES),
    "fedper(evaluate=own)", "fedsol(scaffold, where=all)", "finetuned(fedper)",
    "flfa(feedback=random, n_layers=2)", "fedavg(terms=[test_frozen_previous])",
]  # fmt: skip
EVERY = pytest.mark.parametrize("spec", mark_slow(SPECS))
STEADY = {"fedblade": "fedblade(var_eps=0.01)", "feddecorr": "feddecorr(var_eps=0.01)"}  # as in test_contract.py
ONCE = {
    "fedper(division=layers(patterns=['body.first.*']))": 4 * 8,  # the client's own never travels
    "fedas(division=channels(share=0.5))": BYTES // 2, "cd2_pfed": BYTES // 2, "lg_fedavg": 0, "local(epochs=3)": 0,
    "fedbn": BYTES - 4 * 8,  # as much for its own normalisation
}  # fmt: skip


def assert_frozen(model):
    before = {f"body.{name}": value for name, value in Net().state_dict().items()}
    for name in FIXED:
        assert torch.equal(model[name], before[name]), name


def read_sent(folder):
    """Bytes sent, by round and client."""
    rows = [json.loads(line) for line in (folder / "clients.jsonl").read_text().splitlines()]
    return {(row["round"], row["client"]): row["bytes_down"] for row in rows if "bytes_down" in row}


@pytest.mark.parametrize("spec", mark_slow([*SPECS, *ONCE]))
def test_they_are_sent_once_with_a_client_s_first_message(spec, tmp_path):
    counted = {}
    for name, model in (("frozen", MODEL), ("free", given())):
        play(spec, tmp_path / name, model=model, local={**HARD, "epochs": 1}, dropout=0.4)
        counted[name] = read_sent(tmp_path / name)
    controls = 2 if "scaffold" in spec else 1  # a control for each trained parameter
    for (round_, client), sent in counted["frozen"].items():
        saved = controls * BYTES - (BYTES if round_ == 1 else 0)
        if spec in ONCE:
            saved = ONCE[spec] if round_ > 1 else 0
        assert counted["free"][round_, client] - sent == saved


@EVERY
def test_messages_replies_and_states_do_not_hold_them(spec):
    task = building.prepare(config(spec, model=MODEL), dataset=DATA).task
    server = task.method.init(task.server_context(0))
    message = task.method.download(task.server_context(1, (0,)), server, 0)
    if task.method.survey_reducers:
        message |= survey(task, server, message)
    first = task.work(Job("train", 1, 0, message))
    second = task.work(Job("train", 2, 0, message, first.state))
    for groups in (message, first.groups, first.state, second.groups, second.state):
        assert not any(FIXED & held.keys() for held in groups.values())


@EVERY
def test_they_keep_their_bits_in_serial_and_pool_and_a_resumed_run(spec, tmp_path):
    options = {"model": MODEL, "local": HARD, "sample": 0.5, "rounds": 3}
    serial = play(spec, tmp_path / "serial", **options)
    assert_frozen(serial.server["model"])
    model = serial.client_model(0) if serial.run.method.output == "personal" else serial.model()
    assert_frozen(dict(model.named_parameters()))
    start, trained = initial_model(serial.run, DATA), serial.server["model"]
    if spec == "local(epochs=3)":  # whose server has nothing to train
        trained = dict(serial.client_model(serial.rounds[1]["clients"][0]).named_parameters())
    assert any(not torch.equal(value, start[name]) for name, value in trained.items())
    pool = play(spec, tmp_path / "pool", **options, execution={"executor": "pool", "workers": 2})

    def stop(row):
        if row["round"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.run(config(spec, **options), tmp_path / "cut", dataset=DATA, watch=stop)
    resumed = engine.resume(tmp_path / "cut", dataset=DATA, model=MODEL)
    model = (tmp_path / "serial/model.safetensors").read_bytes()
    for name, other in (("pool", pool), ("cut", resumed)):
        assert rows_without_times(serial) == rows_without_times(other)
        assert model == (tmp_path / name / "model.safetensors").read_bytes()


@EVERY
def test_stacked_equals_serial_within_the_tolerance(spec, caplog):
    spec = STEADY.get(spec, spec)
    serial = play(spec, model=MODEL, execution={"memory_format": "contiguous"})
    stacked = play(spec, model=MODEL, execution={"executor": "stacked", "chunk": 3})
    if methods.build(spec).stackable:
        assert "one by one" not in caplog.text
    assert_frozen(stacked.server["model"])
    assert gap(stacked, serial, initial_model(serial.run, DATA)) < STACKED_TOLERANCE
    assert [row.get("bytes_down") for row in stacked.rounds] == [row.get("bytes_down") for row in serial.rounds]


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["scaffold", "fedavg", "fedprox"])
def test_compiled_steps_know_them(spec, caplog):
    options = {"model": MODEL, "rounds": 1, "local": {"batch": 8}}
    compiled = play(spec, **options, execution={"executor": "stacked", "chunk": 5, "compile": True})
    stacked = play(spec, **options, execution={"executor": "stacked", "chunk": 5})
    assert "not compiled" not in caplog.text
    assert_frozen(compiled.server["model"])
    assert gap(compiled, stacked, initial_model(stacked.run, DATA)) < STACKED_TOLERANCE


@pytest.mark.parametrize("spec", ["fedetf", "fedblade"])
def test_a_method_that_replaces_the_head_trains_its_own_one(spec):
    result = play(spec, model=given("first", "fc"))
    start = initial_model(result.run, DATA)
    after = result.server["model"]
    assert not torch.equal(after["head.projector.weight"], start["head.projector.weight"])
    assert torch.equal(after["body.first.weight"], start["body.first.weight"])
    whole = play(spec, model=given("first", "norm", "second", "norm2", "fc")).server["model"]
    assert not torch.equal(whole["head.scale"], start["head.scale"])


def test_a_frozen_head_stays_with_fedper_and_never_travels(tmp_path):
    result = play("fedper", tmp_path / "frozen", model=given("fc"))
    play("fedper", tmp_path / "free", model=given())
    assert torch.equal(result.server["model"]["head.weight"], Net().fc.weight)
    assert read_sent(tmp_path / "frozen") == read_sent(tmp_path / "free")


def test_tied_weights_are_frozen_together():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.a, self.b = nn.Linear(32, 8), nn.Linear(8, 8), nn.Linear(8, 8)
            self.b.weight = self.a.weight
            self.a.weight.requires_grad_(False)
            self.fc = nn.Linear(8, 3)

        def forward(self, x):
            return self.fc(self.b(self.a(self.stem(x.flatten(1)))))

    net = Tied()
    before = net.a.weight.clone()
    model = play("fedavg", model=GivenModule.of(net, "fc")).model()
    assert torch.equal(model.body.a.weight, before) and model.body.a.weight is model.body.b.weight
    assert not torch.equal(model.body.b.bias, net.b.bias)


def test_other_frozen_parameters_are_another_run():
    assert given("first").fingerprint != given().fingerprint != given("norm").fingerprint


ALL = ("first", "norm", "second", "norm2", "fc")


@pytest.mark.parametrize(("spec", "frozen", "line"), [
    ("fedavg", ALL, "nothing to train"),
    ("fedsol", ("fc",), "has nothing to move"),
    ("finetuned(fedavg, where=head)", ("fc",), "has nothing to tune"),
    ("flfa(select='fixed:body.first')", ("first",), "no layer body.first that is trained and shared"),
    ("fedper", ALL[:-1], "leaves nothing to share"),
])  # fmt: skip
def test_what_cannot_be_is_one_line(spec, frozen, line, tmp_path):
    with pytest.raises(InputError, match=line) as caught:
        play(spec, tmp_path / "run", model=given(*frozen))
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()
