"""Many clients at once: the same results as one by one, within the stated tolerance."""

import json
import re
import shutil

import pytest
import torch
from torch import nn

from support import STACKED_TOLERANCE, gap, initial_model
from unskew.base.batch import cross_entropy
from unskew.base.errors import ClientError
from unskew.core.method import Method, methods
from unskew.core.reducers import total
from unskew.data.dataset import Dataset, Samples
from unskew.executors.compiled.steps import CompiledLanes
from unskew.executors.serial import Serial
from unskew.models.user_module import GivenModule
from unskew.runs import engine
from unskew.runs.config import from_table

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="torch's compiler needs g++")


def images(n=90, shape=(3, 8, 8), classes=4, sizes=(1, 9, 17, 30, 33)):
    """Ragged clients: one with a single sample, one whose last batch is one sample, none of equal size."""
    rng = torch.Generator().manual_seed(0)
    y = torch.randint(classes, (n,), generator=rng)
    x = torch.randint(0, 100, (n, *shape), generator=rng, dtype=torch.uint8) + (40 * y).to(torch.uint8).view(
        -1, 1, 1, 1
    )
    groups = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    names = tuple(f"site{k}" for k in range(len(sizes)))
    mean, std = (0.5,) * shape[0], (0.5,) * shape[0]
    samples = Samples(x, y)
    return Dataset("ragged", samples, samples, tuple("abcd"), mean, std, groups=groups, group_names=names)


DATA = images()
LOCAL = {"batch": 8, "epochs": 2, "lr": 0.05, "momentum": 0.9, "weight_decay": 0.001}


def play(executor, data=DATA, **options):
    execution = {"executor": executor, "memory_format": "contiguous", **options.pop("execution", {})}
    table = {"model": "cnn8", "split": "natural", "rounds": 2, "seed": 5, "local": LOCAL, "execution": execution}
    return engine.run(from_table({**table, **options}), dataset=data)


def assert_alike(data=DATA, execution=None, **options):
    """Both runs, after checking that they tell the same story."""
    serial, stacked = play("serial", data, **options), play("stacked", data, **options, execution=execution or {})
    assert gap(stacked, serial, initial_model(serial.run, data)) < STACKED_TOLERANCE
    for mine, theirs in zip(stacked.rounds, serial.rounds, strict=True):
        exact = ("clients", "dropped", "excluded", "bytes_up", "bytes_down", "lr")
        assert {key: mine.get(key) for key in exact} == {key: theirs.get(key) for key in exact}
        if theirs.get("train_loss") is not None:
            assert mine["train_loss"] == pytest.approx(theirs["train_loss"], rel=1e-3)
    for name, value in serial.server["buffers"].items():
        torch.testing.assert_close(stacked.server["buffers"][name], value, rtol=1e-3, atol=1e-4)
    return serial, stacked


@pytest.mark.parametrize("chunk", [1, 2, 5, 64])
@pytest.mark.parametrize("model", ["mlp", "cnn8(norm=batch)"])
def test_ragged_clients_in_chunks_of_any_size(model, chunk, caplog):
    assert_alike(model=model, execution={"chunk": chunk})
    assert "one by one" not in caplog.text


@pytest.mark.parametrize(
    "local",
    [
        {"steps": 7}, {"drop_last": True}, {"shuffle": False}, {"momentum": 0.0, "weight_decay": 0.0},
        {"batch": 64}, {"lr_decay": 0.5}, {"buffers": "local"}, {"buffers": "reset"},
    ],
)  # fmt: skip
def test_every_local_setting(local, caplog):
    assert_alike(model="cnn8(norm=batch)", local={**LOCAL, **local})
    assert "one by one" not in caplog.text


@pytest.mark.parametrize("method", ["fedprox(mu=1.0)", "scaffold"])
def test_methods_with_terms_and_state(method, caplog):
    assert_alike(method=method, model="cnn8(norm=batch)", rounds=3, sample=0.6)
    assert "one by one" not in caplog.text


def test_batches_of_one():
    assert_alike(model="mlp", local={**LOCAL, "batch": 1})


class Double(nn.Module):
    """Takes its inputs to double precision."""

    def forward(self, x):
        return x.double()


@pytest.mark.parametrize("buffers", ["average", "local"])
@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_in_double_precision_nothing_but_the_last_digits_differs(method, buffers):
    torch.manual_seed(0)
    body = [
        Double(),
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(72, 16),
    ]
    model = GivenModule.of(nn.Sequential(*body, nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)).double(), "9")
    serial, stacked = assert_alike(method=method, model=model, rounds=4, local={**LOCAL, "buffers": buffers})
    assert gap(stacked, serial, initial_model(serial.run, DATA)) < 1e-9


def test_augmentation_draws_each_clients_own_stream():
    assert_alike(augment="augment(crop=2,flip=true,cutout=3)")


def test_dropped_clients_and_holdout_tests():
    assert_alike(dropout=0.4, rounds=4, evaluation={"local_test": "holdout", "clients_every": 1})


@pytest.mark.parametrize("buffers", ["average", "local", "reset"])
def test_a_client_with_one_test_sample_is_tested_as_if_it_were_alone(buffers):
    # with `reset` tests use the statistics of the batch, but one sample has none
    evaluation = {"local_test": "holdout", "holdout": 0.1, "clients_every": 1}
    options = {"model": "cnn8(norm=batch)", "local": {**LOCAL, "buffers": buffers}, "evaluation": evaluation}
    serial, stacked = assert_alike(**options)
    for mine, theirs in zip(stacked.rounds, serial.rounds, strict=True):
        assert mine["personal"] == pytest.approx(theirs["personal"], rel=1e-4)


def with_dropout():
    torch.manual_seed(0)
    body = [
        nn.Conv2d(3, 6, 3),
        nn.ReLU(),
        nn.Dropout2d(0.3),
        nn.Flatten(),
        nn.Linear(216, 16),
        nn.ReLU(),
        nn.Dropout(0.5),
    ]
    return nn.Sequential(*body, nn.Linear(16, 4))


def test_dropout_draws_each_clients_own_stream(caplog):
    assert_alike(model=GivenModule.of(with_dropout(), "7"))
    assert "one by one" not in caplog.text


def test_dropout_in_double_precision_is_scaled_in_double_precision():
    model = nn.Sequential(Double(), *with_dropout().double())
    serial, stacked = assert_alike(model=GivenModule.of(model, "8"))
    assert gap(stacked, serial, initial_model(serial.run, DATA)) < 1e-12


def test_batchnorm_convnet_on_cifar_sized_images_over_five_rounds(tmp_path):
    data = images(60, (3, 32, 32), sizes=(12, 20, 28))
    options = {"model": "convnet3(norm=batch,width=16)", "rounds": 5, "local": {**LOCAL, "epochs": 1, "lr": 0.01}}
    serial, _ = assert_alike(data, **options)
    pool = play("pool", data, **options, execution={"workers": 2})
    for group, values in serial.server.items():
        for name, value in values.items():
            assert torch.equal(value, pool.server[group][name]), (group, name)


@methods.register("test_python_branch")
class PythonBranch(Method):
    """Looks at a value in Python, which many clients cannot do at once."""

    def weight(self, c, params):
        return c.num_samples if float(c.num_samples) > 10 else c.num_samples * 2


@methods.register("test_fails_at_two")
class FailsAtTwo(Method):
    """Client 2 fails."""

    def start(self, c):
        if c.num_samples == 17:
            raise ZeroDivisionError("seventeen")
        return super().start(c)


@methods.register("test_stacked_own_head")
class OwnHead(Method):
    """Clients remember their head from the first visit on."""

    personal = ("head.*",)
    output = "personal"


@methods.register("test_stacked_two_loops")
class TwoLoops(Method):
    """Trains twice, with noise that depends on the number of the step."""

    def gradient(self, c, params, batch):
        drawn = c.draw(f"noise/{c.step}", lambda rng: torch.randn(4, generator=rng))
        grads = super().gradient(c, params, batch)
        return {**grads, "head.bias": grads["head.bias"] + drawn}

    def train(self, c, params):
        return super().train(c, super().train(c, params))


@pytest.fixture(autouse=True, scope="module")
def only_here():
    yield
    for name in (
        "test_python_branch",
        "test_fails_at_two",
        "test_stacked_own_head",
        "test_stacked_two_loops",
        "test_keeps_a_tensor",
        "test_round_in_loss",
        "test_hidden_round",
    ):
        methods._classes.pop(name, None)


def test_what_cannot_be_stacked_runs_one_by_one_and_says_so(caplog):
    serial, stacked = play("serial", method="test_python_branch"), play("stacked", method="test_python_branch")
    assert caplog.text.count("train of test_python_branch cannot run for many clients at once") == 1
    for name, value in serial.server["model"].items():
        assert torch.equal(value, stacked.server["model"][name])


def test_a_step_that_has_another_number_at_each_client_runs_one_by_one_and_says_so(caplog):
    serial, stacked = (play(kind, method="test_stacked_two_loops", model="mlp") for kind in ("serial", "stacked"))
    assert "clients have taken different numbers of steps before" in caplog.text
    for name, value in serial.server["model"].items():
        assert torch.equal(value, stacked.server["model"][name])


@pytest.mark.parametrize("wire", ["", "topk(share=0.2)"])
@pytest.mark.parametrize(("method", "buffers"), [("test_stacked_own_head", "average"), ("fedavg", "local")])
def test_newcomers_that_hold_other_groups_are_a_stack_of_their_own(method, buffers, wire, caplog):
    more = {"wire": wire} if wire else {}
    local = {**LOCAL, "buffers": buffers}
    assert_alike(method=method, model="cnn8(norm=batch)", rounds=4, sample=0.6, dropout=0.3, local=local, **more)
    assert "one by one" not in caplog.text


def test_a_client_that_fails_is_named():
    with pytest.raises(ClientError, match=r"client 2 failed in round 1.*seventeen"):
        play("stacked", method="test_fails_at_two")


def test_a_client_that_diverges_is_left_out_alone():
    serial, stacked = (
        play(executor, local={**LOCAL, "lr": 1e20, "epochs": 1, "batch": 9}) for executor in ("serial", "stacked")
    )
    assert stacked.rounds[1]["excluded"] == serial.rounds[1]["excluded"]


# ------------------------------------------------------------------------------------------------- compiled

COMPILED = {"compile": True, "chunk": 5}


@needs_compiler
@pytest.mark.parametrize("method", ["fedprox(mu=1.0)", "scaffold"])
@pytest.mark.slow
def test_compiled_steps_are_the_same_steps(method, caplog):
    assert_alike(
        method=method, model="mlp(hidden=[16])", rounds=4, local={**LOCAL, "lr_decay": 0.7}, execution=COMPILED
    )
    assert "not compiled" not in caplog.text and "one by one" not in caplog.text


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_blocks_of_compiled_steps_in_which_other_clients_are_active(momentum, caplog):
    data = images(98, sizes=(20, 28, 50))  # in the first block everyone is active, later fewer and fewer
    local = {**LOCAL, "batch": 4, "epochs": 1, "momentum": momentum}
    assert_alike(data, model="mlp(hidden=[16])", local=local, execution={"compile": True, "chunk": 3})
    assert "not compiled" not in caplog.text and "one by one" not in caplog.text


@needs_compiler
@pytest.mark.parametrize("momentum", [pytest.param(0.0, marks=pytest.mark.slow), 0.9])
@pytest.mark.slow
def test_a_visit_goes_on_uncompiled_where_it_was(momentum, monkeypatch):
    plain = CompiledLanes._trace
    monkeypatch.setattr(CompiledLanes, "_trace", lambda self, c, params, gradient, block: (
        plain(self, c, params, gradient, block) if len(block) == 4 else 1 / 0))  # fmt: skip
    data = images(98, sizes=(20, 28, 50))
    local = {**LOCAL, "batch": 4, "epochs": 1, "momentum": momentum}
    assert_alike(data, model="mlp(hidden=[16])", local=local, execution={"compile": True, "chunk": 3})


@needs_compiler
def test_one_graph_however_many_clients_there_are(caplog, monkeypatch):
    traced = []
    monkeypatch.setattr(CompiledLanes, "_trace", lambda self, *_, **__: traced.append(self.count) or 1 / 0)
    assert_alike(model="mlp(hidden=[16])", rounds=4, dropout=0.4, execution={"compile": True, "chunk": 3})
    assert set(traced) == {3}


@needs_compiler
@pytest.mark.slow
def test_a_graph_that_no_longer_computes_what_the_slots_say_is_found_out(caplog):
    assert_alike(method="test_hidden_round", model="mlp(hidden=[16])", rounds=6, execution=COMPILED)
    assert "no longer computes what the slots say" in caplog.text


@methods.register("test_notes_twice")
class NotesTwice(Method):
    """Notes two figures of a step under one name."""

    def loss(self, c, params, batch):
        value = super().loss(c, params, batch)
        c.diagnostics.note("level", value.detach())
        c.diagnostics.note("level", 3 * value.detach())
        return value


@needs_compiler
@pytest.mark.slow
def test_notes_of_compiled_steps_are_means(tmp_path, caplog):
    table = {"method": "test_notes_twice", "model": "mlp(hidden=[16])", "split": "natural", "rounds": 2, "local": LOCAL}
    noted = {}
    for executor, options in {"serial": {}, "stacked": COMPILED}.items():
        run = from_table({**table, "execution": {"executor": executor, **options}})
        engine.run(run, tmp_path / executor, dataset=DATA)
        rows = [json.loads(line) for line in (tmp_path / executor / "clients.jsonl").read_text().splitlines()]
        noted[executor] = [(row["level"], row["train_loss"]) for row in rows if "level" in row]
    for ours, theirs in zip(noted["stacked"], noted["serial"], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3) and ours[0] == pytest.approx(2 * ours[1], rel=1e-3)
    assert len(noted["serial"]) > 4 and "not compiled" not in caplog.text and "one by one" not in caplog.text
    assert "recorded code" not in caplog.text  # nobody edits what the compiler makes


@needs_compiler
@pytest.mark.slow
def test_compiled_batchnorm_keeps_its_statistics(caplog):
    assert_alike(model="cnn8(norm=batch)", execution=COMPILED)
    assert "not compiled" not in caplog.text


@methods.register("test_keeps_a_tensor")
class KeepsTensor(Method):
    """Closes over a tensor of its own, which a compiled step would take for a constant."""

    def train(self, c, params):
        own = c.counts.float() / c.counts.sum()

        def gradient(c, p, batch):
            return c.grad(lambda q: self.loss(c, q, batch) + batch.mean(c.forward(q, batch.x).logits @ own), p)

        from unskew.core import local_loop

        return local_loop.sgd(c, params, gradient)


@methods.register("test_round_in_loss")
class RoundInLoss(Method):
    """Branches on the round in Python, which a compiled step would never do again."""

    def loss(self, c, params, batch):
        value = super().loss(c, params, batch)
        return value * 2 if c.round > 1 else value


@methods.register("test_hidden_round")
class HiddenRound(Method):
    """A number of the round that hides in a dictionary, where no trace can see it."""

    def prepare(self, c):
        plain, hidden = c.forward, {"scale": 0.5 if c.round > 1 else 1.0}

        def forward(params, x, mode="train", **options):
            out = plain(params, x, mode, **options)
            return out._replace(logits=out.logits * hidden["scale"])

        return c.with_forward(forward)


@needs_compiler
@pytest.mark.parametrize("method", ["test_keeps_a_tensor", "test_round_in_loss"])
def test_what_cannot_be_compiled_runs_uncompiled_and_says_so(method, caplog):
    assert_alike(method=method, model="mlp(hidden=[16])", execution=COMPILED)
    assert caplog.text.count("the local step is not compiled") == 1 and "one by one" not in caplog.text


@needs_compiler
def test_dropout_is_not_compiled(caplog):
    assert_alike(model=GivenModule.of(with_dropout(), "7"), execution=COMPILED)
    assert "the local step is not compiled" in caplog.text


# ------------------------------------------------------------- what differs from `serial` without an error


@methods.register("test_plain_mean")
class PlainMean(Method):
    """Counts padding in its mean."""

    def criterion(self, c, out, batch):
        return cross_entropy(out.logits, batch.y).mean()


@methods.register("test_batch_mean")
class BatchMean(Method):
    """The same without."""

    def criterion(self, c, out, batch):
        return batch.mean(cross_entropy(out.logits, batch.y))


@methods.register("test_counts_rows")
class CountsRows(Method):
    """Takes the width of a batch for its number of samples."""

    def survey(self, c):
        return {"seen": {"rows": torch.tensor(float(sum(len(batch.y) for batch in c.passes(8))))}}

    survey_reducers = {"seen": total}

    def digest(self, s, server, surveyed):
        return {**server, "seen": surveyed["seen"]}


@methods.register("test_global_draw")
class GlobalDraw(Method):
    """Draws from torch's global generator."""

    def criterion(self, c, out, batch):
        return batch.cross_entropy(out.logits + 0.5 * torch.rand(()))


@methods.register("test_functional_dropout")
class FunctionalDropout(Method):
    """Dropout outside a layer."""

    def criterion(self, c, out, batch):
        return batch.cross_entropy(torch.nn.functional.dropout(out.logits, 0.3))


@pytest.mark.parametrize(
    "method, kind, line",
    [
        ("test_plain_mean", "train", r"what it sends as 'delta' of client \d differs by .* % from working alone"),
        ("test_counts_rows", "survey", r"what it sends as 'seen' of client \d differs by"),
        ("test_global_draw", "train", "draws from torch's global generator; c.draw"),
        ("test_functional_dropout", "train", "draws from torch's global generator"),
    ],
)
def test_what_would_differ_silently_works_one_by_one(method, kind, line, caplog):
    ours, theirs = play("stacked", method=method), play("serial", method=method)
    assert re.search(f"{kind} of {method} cannot run for many clients at once .*{line}", caplog.text)
    for name, value in theirs.server[
        "model"
    ].items():  # the survey of one by one is that of `serial`; training is stacked
        torch.testing.assert_close(ours.server["model"][name], value, rtol=0, atol=0 if kind == "train" else 1e-4)
    assert "seen" not in theirs.server or torch.equal(ours.server["seen"]["rows"], theirs.server["seen"]["rows"])


def test_a_method_that_keeps_to_the_rules_is_stacked(caplog):
    play("stacked", method="test_batch_mean")
    assert "one by one" not in caplog.text


def test_only_a_few_clients_are_tried(monkeypatch):
    """Every round; between rounds 1, 2, 4, 8 … two of them, on three batches."""
    seen = []

    def run(self, jobs):
        for job in jobs:
            seen.append((job.kind, job.round, len(self.task.federation.train(job.client))))
            yield self.task.work(job)

    monkeypatch.setattr(Serial, "run", run)
    play("stacked", method="test_batch_mean", rounds=7)
    rounds = [number for kind, number, _ in seen if kind == "train"]
    assert rounds == [1] * 4 + [2] * 4 + [3] * 2 + [4] * 4 + [5] * 2 + [6] * 2 + [7] * 2
    assert max(length for kind, number, length in seen if kind == "train" and number in (3, 5, 6, 7)) <= 24


@methods.register("test_late_mean")
class LateMean(Method):
    """A plain mean, which counts padding, from some round on: as code that begins then, or as a weight that was 0."""

    warmup: int = 2
    ramp: bool = False

    def loss(self, c, params, batch):
        out = c.forward(params, batch.x)
        value = batch.cross_entropy(out.logits)
        if self.ramp or c.round > self.warmup:
            value = value + (0.1 if c.round > self.warmup else 0.0) * out.features.square().mean()
        return value


@pytest.mark.parametrize("ramp", ["true", "false"])
@pytest.mark.parametrize("warmup", [2, 4])
def test_what_begins_in_a_later_round_is_found_there(warmup, ramp, caplog):
    method = f"test_late_mean(warmup={warmup}, ramp={ramp})"
    ours, theirs = play("stacked", method=method, rounds=7), play("serial", method=method, rounds=7)
    assert caplog.text.count("train of test_late_mean cannot run for many clients at once") == 1
    for name, value in theirs.server["model"].items():
        torch.testing.assert_close(ours.server["model"][name], value, rtol=0, atol=1e-5)


@methods.register("test_late_survey")
class LateSurvey(Method):
    """A survey that sends a plain mean from round 3 on, which the server's step depends on."""

    survey_reducers = {"seen": total}

    def survey(self, c):
        found = [
            values.mean() if c.round >= 3 else batch.mean(values)
            for batch in c.passes(8)
            for values in [batch.x.float().flatten(1).mean(1)]
        ]
        return {"seen": {"mean": torch.stack(found).sum()}}

    def digest(self, s, server, surveyed):
        return {**server, "seen": surveyed["seen"]}


@methods.register("test_late_step")
class LateStep(Method):
    """A plain mean from round 3 on, in later steps of a visit only."""

    after: int = 0

    def loss(self, c, params, batch):
        out = c.forward(params, batch.x)
        late = c.round >= 3 and c.diagnostics.steps > self.after
        return batch.cross_entropy(out.logits) + (0.3 * out.features.square().mean() if late else 0.0)


@methods.register("test_counts_sent")
class CountsSent(Method):
    """Integers that count padding."""

    reducers = {**Method.reducers, "counts": total}

    def upload(self, c, params):
        rows = sum(torch.ones_like(batch.y).sum() for batch in c.passes(8))
        return {**super().upload(c, params), "counts": {"rows": rows}}


@methods.register("test_notes_rows")
class NotesRows(Method):
    """A figure that counts padding."""

    def loss(self, c, params, batch):
        out = c.forward(params, batch.x)
        c.diagnostics.note("size", out.features.detach().square().mean())
        return batch.cross_entropy(out.logits)


@pytest.mark.parametrize(
    "method, sizes, local",
    [
        ("test_late_survey", (33, 33, 34, 34), {"epochs": 1}),
        ("test_late_step", (32, 32, 32, 40), {"epochs": 2}),
        ("test_late_step", (32, 32, 32, 40), {"steps": 5}),
        ("test_late_step", (33, 33, 33, 34), {"epochs": 1}),
        ("test_late_step(after=2)", (40, 33, 48, 50), {"epochs": 1}),
        ("test_counts_sent", (20, 25, 31, 40), {"epochs": 1}),
        ("test_notes_rows", (20, 25, 31, 40), {"epochs": 1}),
    ],
)
def test_what_would_differ_is_found_whatever_the_sizes(method, sizes, local, caplog):
    data = images(sum(sizes), sizes=sizes)
    options = {"data": data, "method": method, "rounds": 3, "local": {"batch": 16, "lr": 0.05, **local}, "model": "mlp"}
    stacked, serial = play("stacked", **options), play("serial", **options)
    assert caplog.text.count("clients work one by one") == 1
    assert stacked.rounds[-1]["one_by_one"] == ["survey" if "survey" in method else "train"]
    for group in serial.server.keys() - {"buffers"}:
        for name, value in serial.server[group].items():
            torch.testing.assert_close(stacked.server[group][name], value, rtol=1e-4, atol=1e-5)


def test_a_resumed_run_goes_on_one_by_one(tmp_path):
    """Also where what was found in round 1 would not be found again."""
    options = {"method": "test_counts_sent", "model": "mlp", "split": "natural", "rounds": 6, "seed": 5}
    options |= {"local": {"batch": 16, "lr": 0.05}, "execution": {"executor": "stacked", "checkpoint_every": 1}}
    whole = engine.run(from_table(options), tmp_path / "whole", dataset=DATA)

    def stop(row):
        if row["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.run(from_table(options), tmp_path / "cut", dataset=DATA, watch=stop)
    resumed = engine.resume(tmp_path / "cut", dataset=DATA)
    assert [row.get("one_by_one") for row in resumed.rounds] == [row.get("one_by_one") for row in whole.rounds]
    for name, value in whole.server["model"].items():
        assert torch.equal(resumed.server["model"][name], value)
