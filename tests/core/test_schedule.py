"""The learning rate over the rounds."""

import math
import re

import pytest
import torch
from torch.optim import lr_scheduler

import unskew
from plugin_files import write_part
from small_runs import EVEN, SKEWED, equal, play, register, said, weights
from unskew.base.errors import InputError, SlotError
from unskew.core.schedule import Schedule, schedules
from unskew.runs.config import Run, from_table


@pytest.mark.parametrize(
    ("text", "factors"),
    [("constant", [1, 1, 1]), ("exponential(0.5)", [1, 0.5, 0.25]), ("inverse(decay=1.0)", [1, 1 / 2, 1 / 3])],
)
def test_factors_by_hand(text, factors):
    assert [schedules.build(text).factor(done) for done in range(3)] == factors


def test_lr_decay_is_short_for_exponential():
    options = {"rounds": 3, "clients": 3, "steps": 2, "lr": 0.1}
    short = unskew.run("fedavg", lr_decay=0.5, **options)
    whole = unskew.run("fedavg", schedule="exponential(0.5)", **options)
    other = unskew.run("fedavg", schedule="inverse(1.0)", **options)
    assert short.summary["accuracy"] == whole.summary["accuracy"]
    assert short.summary["loss"] == whole.summary["loss"] != other.summary["loss"]


def test_a_constant_schedule_is_no_part_of_the_hash():
    assert from_table({"local": {"schedule": "constant"}}).hash == Run().hash
    assert from_table({"local": {"schedule": "inverse"}}).hash != Run().hash


def test_two_rules_at_once_are_refused():
    with pytest.raises(InputError, match="both change the learning rate"):
        unskew.run("fedavg", lr_decay=0.9, schedule="inverse", rounds=1)


def test_the_written_run_reads_back(tmp_path):
    run = from_table({"local": {"schedule": "inverse(decay=0.01)"}, "data": "digits(normalisation=half)"})
    (tmp_path / "run.toml").write_text(run.to_toml())
    from unskew.runs.config import read_file

    assert from_table(read_file(tmp_path / "run.toml")).hash == run.hash


# -------------------------------------------------------------------------------------- step, cosine and warm-up


def torch_rates(make, rounds):
    """The rates that a scheduler of torch gives in each round, starting from 0.1."""
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    scheduler, found = make(optimiser), []
    for _ in range(rounds):
        found.append(scheduler.get_last_lr()[0])
        optimiser.step()
        scheduler.step()
    return found


def warm(optimiser, rounds, then):
    rise = lr_scheduler.LinearLR(optimiser, start_factor=1 / (rounds + 1), total_iters=rounds)
    return lr_scheduler.SequentialLR(optimiser, [rise, then], milestones=[rounds])


TORCH = {
    "exponential(0.1, 0.9)": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "step(0.1, 3)": lambda o: lr_scheduler.StepLR(o, 3),
    "step(0.1, at=[2, 7], decay=0.5)": lambda o: lr_scheduler.MultiStepLR(o, [2, 7], 0.5),
    "cosine(0.1)": lambda o: lr_scheduler.CosineAnnealingLR(o, 12),
    "cosine(0.1, floor=0.2)": lambda o: lr_scheduler.CosineAnnealingLR(o, 12, eta_min=0.02),
    "cosine(0.1, warmup=4)": lambda o: warm(o, 4, lr_scheduler.CosineAnnealingLR(o, 8)),
    "warmup(0.1, 4)": lambda o: warm(o, 4, lr_scheduler.ConstantLR(o, factor=1.0)),
    "warmup(0.1, 4, step(3))": lambda o: warm(o, 4, lr_scheduler.StepLR(o, 3)),
    "warmup(lr=0.1, rounds=4, then=cosine)": lambda o: warm(o, 4, lr_scheduler.CosineAnnealingLR(o, 8)),
    "inverse(0.1, 0.5)": lambda o: lr_scheduler.LambdaLR(o, lambda done: 1 / (1 + 0.5 * done)),
}


@pytest.mark.filterwarnings("ignore:The epoch parameter")
@pytest.mark.parametrize("text", TORCH)
def test_rates_are_torchs(text):
    local = from_table({"local": {"lr": text}}).local
    schedule = local.chosen_schedule.for_rounds(12)
    rates = [local.lr * schedule.factor(done) for done in range(12)]
    assert rates == pytest.approx(torch_rates(TORCH[text], 12), rel=1e-6, abs=1e-12)


def test_clients_train_with_the_rates_of_the_schedule():
    found = unskew.run("fedavg", lr="cosine(0.1, warmup=2)", rounds=4, clients=3, steps=1).rounds
    assert [row["lr"] for row in found[1:]] == pytest.approx([0.1 / 3, 0.2 / 3, 0.1, 0.05])


def test_lr_with_a_schedule_is_short_for_both():
    both = from_table({"local": {"lr": 0.1, "schedule": "cosine(warmup=10)"}})
    texts = ["cosine(0.1, warmup=10)", "cosine(lr=0.1, warmup=10)", {"name": "cosine", "lr": 0.1, "warmup": 10}]
    assert all(from_table({"local": {"lr": text}}) == both for text in texts)
    assert from_table({"local": {"lr": "0.1"}}) == from_table({"local": {"lr": 0.1}})
    assert from_table({"local": {"lr": "constant(0.05)"}}).hash == Run().hash


def test_what_depends_on_the_number_of_rounds():
    ends = {"cosine": True, "warmup(2, cosine)": True, "cosine(rounds=9, floor=0.1)": False, "warmup(2)": False,
            "step(3)": False, "inverse": False}  # fmt: skip
    assert {text: schedules.build(text).depends_on_rounds for text in ends} == ends
    short, long = (schedules.build("cosine(rounds=9, floor=0.1)").for_rounds(rounds) for rounds in (5, 20))
    assert short == long and long.factor(15) == 0.1


@pytest.mark.parametrize(
    ("local", "line"),
    [
        ({"lr": "fast"}, "local.lr: input should be a number, got 'fast'; or a schedule of one, such as cosine"),
        ({"lr": "cosine"}, "local.lr: cosine needs the rate as its first argument"),
        ({"lr": "cosin(0.1)"}, "unknown schedule 'cosin'; did you mean cosine"),
        ({"lr": "cosine(-0.1)"}, "local.lr: input should be greater than 0, got -0.1"),
        ({"lr": "cosine(0.1)", "schedule": "inverse"}, "both name a schedule; leave one of them out"),
        ({"lr": "cosine(0.1)", "lr_decay": 0.9}, "both change the learning rate"),
        ({"lr": "cosine(0.1, warmup=3)"}, "a warm-up of 3 leaves nothing of 3 rounds"),
        ({"lr": "cosine(0.1, rounds=2)"}, "is at 0 after 2 rounds, and the run has 3"),
        ({"schedule": "step"}, "step needs either every or at"),
        ({"schedule": "step(3, at=[2])"}, "step needs either every or at"),
        ({"schedule": "step(at=[3, 2])"}, "step.at: expected growing numbers"),
        ({"schedule": "warmup(0)"}, "warmup.rounds: input should be greater than or equal to 1"),
    ],
)
def test_bad_schedules_are_one_line(local, line):
    with pytest.raises(InputError, match=re.escape(line)):
        from_table({"local": local, "rounds": 3}).local.check(3)


def test_a_warm_up_longer_than_the_run_is_said(caplog):
    unskew.run("fedavg", lr="warmup(0.1, 7)", rounds=1, clients=3, steps=1)
    assert "gives at most 0.125 of local.lr within 1 rounds" in said(caplog)


# --------------------------------------------------------------------------------------------------------- a user's own


def schedule(name, *lines):
    """A plugin with a schedule of this name."""
    body = "\n".join(lines)
    return write_part(name, "schedules", "Schedule", body)


@pytest.mark.parametrize(
    ("factor", "line"),
    [
        (lambda self, done: None, "got None"),
        (lambda self, done: -1.0, r"got -1\.0"),
        (lambda self, done: math.nan, "got nan"),
        (lambda self, done: torch.ones(2), r"got tensor\(\[1\., 1\.\]\)"),
        (lambda self, done: 1 / done, "ZeroDivisionError: .*, in schedule odd.factor"),
    ],
)
def test_a_schedule_that_gives_no_factor_is_one_line(factor, line, own_names):
    register("schedules", "odd", Schedule, factor=factor)
    with pytest.raises(SlotError, match=f"the server failed in round 1: .*{line}"):
        play(schedule="odd")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (
            "def for_rounds(self, rounds): raise ValueError('boom')",
            "ValueError: boom, in schedule {name}.for_round",
        ),
        ("def for_rounds(self, rounds): pass", "{name}.for_rounds must return a schedule, such as self, got None"),
        ("def factor(self, done): return torch.ones((), device='meta')", "must return a finite number from 0 up"),
        ("def factor(self, done): return True", "must return a finite number from 0 up, got True"),
    ],
)
def test_faults_of_a_schedule_are_one_line(line, says, name):
    plugin = schedule(name, "def factor(self, done): return 1.0", line)
    with pytest.raises(SlotError, match=says.format(name=name)):
        unskew.run(plugin=plugin, schedule=name, **SKEWED)


@pytest.mark.parametrize(
    "expression",
    ["float(np.random.rand()) + 0.1", "random.random() + 0.1", "float(torch.rand(())) + 0.1", "next(Mine.calls)"],
)
def test_a_schedule_that_is_not_the_same_when_asked_again_is_named(expression, name):
    plugin = schedule(name, "import itertools", "calls = itertools.count(1)",
                      f"def factor(self, done): return {expression}")  # fmt: skip
    with pytest.raises(SlotError, match=rf"schedule {name}.factor must depend on the rounds done alone"):
        unskew.run(plugin=plugin, schedule=name, **SKEWED)


def test_a_schedule_that_asks_for_the_rounds_makes_an_extended_run_another_one(name):
    plugin = schedule(name, "total: int = 0",
                      "def for_rounds(self, rounds): return dataclasses.replace(self, total=rounds)",
                      "def factor(self, done): return 1.0 - 0.9 * done / self.total")  # fmt: skip
    unskew.run(plugin=plugin, schedule=name, out="a", **SKEWED)
    fresh = unskew.run(plugin=plugin, schedule=name, **{**SKEWED, "rounds": 4})
    longer = unskew.extend("a", 4)
    assert longer.summary["extended"][0]["same"] is False
    assert longer.summary["run"] != fresh.summary["run"]


def test_a_schedule_may_give_a_tensor(own_names):
    register("schedules", "halved", Schedule, factor=lambda self, done: torch.tensor(0.5) ** done)
    assert equal(play(schedule="halved"), play(schedule="exponential(decay=0.5)"))


def test_a_schedule_may_give_numbers_of_numpy(name):
    text = "def factor(self, done):\n    return np.float32(1.0)"
    plugin = write_part(name, "schedules", "Schedule", text)
    assert torch.equal(weights(unskew.run(schedule=name, plugin=plugin, **EVEN)), weights(unskew.run(**EVEN)))
