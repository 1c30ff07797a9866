"""Measures of a user's own: they change no result, draw the same everywhere, and each fault is one line."""

import pytest
import torch
from torch import nn

from small_runs import EXECUTORS, are_near, equal, make, play, register
from unskew import Measure
from unskew.base.errors import SlotError

pytestmark = pytest.mark.usefixtures("own_names")


def note_size(self, c, params, *more):
    x = more[0].x if more else next(iter(c.passes(16))).x
    for mode in ("train", "batch"):
        c.diagnostics.note("size", c.forward(params, x, mode).logits.detach().abs().mean())
    c.diagnostics.note("size", c.features(params, x).detach().abs().mean())


def draw(self, c, *more):
    c.diagnostics.note("drawn", torch.rand(()))


class Noisy(nn.Module):
    """Draws from torch's generator in training."""

    def __init__(self):
        super().__init__()
        self.hidden, self.norm, self.drop, self.fc = (
            nn.Linear(64, 8),
            nn.BatchNorm1d(8),
            nn.Dropout(0.5),
            nn.Linear(8, 10),
        )

    def forward(self, x):
        return self.fc(self.drop(torch.nn.functional.dropout(self.norm(self.hidden(x.flatten(1))), 0.2, self.training)))


def plain_dropout():
    torch.manual_seed(0)
    layers = nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 10)
    return {"model": nn.Sequential(*layers), "head": "5"}


def drawing():
    torch.manual_seed(0)
    return {"model": Noisy(), "head": "fc"}


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("hook", ["before_step", "step", "trained"])
@pytest.mark.parametrize("network", [plain_dropout, drawing])
def test_a_measure_that_makes_passes_changes_no_result(network, hook, executor):
    options = {**network(), "executor": executor}
    register("measures", "size", Measure, **{hook: note_size})
    plain, looked = play(**options), play(measure="size", **options)
    assert equal(plain, looked) and plain.rounds[-1]["loss"] == looked.rounds[-1]["loss"]


@pytest.mark.parametrize("hook", ["before_step", "trained"])
def test_a_measure_that_draws_changes_no_result(hook):
    register("measures", "draws", Measure, **{hook: draw})
    plain, *others = play(**drawing()), *(play(measure="draws", executor=how, **drawing()) for how in EXECUTORS)
    assert equal(plain, others[0]) and equal(plain, others[1]) and are_near(plain, others[2])


def test_figures_draw_the_same_on_every_executor():
    register("measures", "draws", Measure, figures=lambda self, look: {"drawn": float(torch.rand(()))},
             summarise=lambda self, rows: {"last": float(torch.rand(()))})  # fmt: skip
    runs = [play(measure="draws", executor=how) for how in ("serial", "pool", "stacked")]
    found = [[row["measures"]["drawn"] for row in run.rounds] for run in runs]
    assert found[0] == found[1] == found[2] and len(set(found[0])) == 3
    assert len({run.summary["measures"]["last"] for run in runs}) == 1


# --------------------------------------------------------------------------------------------------------------- faults


def count_on_self(self, *given):
    object.__setattr__(self, "_n", getattr(self, "_n", 0) + 1)
    return {}


def write_server(self, look):
    for value in look.server["model"].values():
        value.data.mul_(0.5)
    return {}


def write_published(self, look):
    if look.round:
        look.published["model"]["head.bias"].numpy()[:] = 7
    return {}


def noting(name):
    return lambda self, c, *given: c.diagnostics.note(name, 100.0)


KEEPS = r"changes one\._n in place; it may only look"
MEASURES = {
    "state in figures": ([{"figures": count_on_self}], rf"measure one\.figures {KEEPS}"),
    "state in summarise": ([{"summarise": count_on_self}], rf"measure one\.summarise {KEEPS}"),
    "state in trained": ([{"trained": count_on_self}], rf"measure one\.trained {KEEPS}"),
    "state in step": ([{"step": count_on_self}], rf"measure one\.step {KEEPS}"),
    "writes server": ([{"figures": write_server}], r'measure one\.figures changes look\.server\["model"\].*in place'),
    "writes published": ([{"figures": write_published}], r'one\.figures changes look\.server\["model"\].*in place'),
    "train_loss": ([{"trained": noting("train_loss")}],
                   r"measure one\.trained notes something under 'train_loss' .*as the method \(or a term\) does"),
    "train_loss before": ([{"before_step": noting("train_loss")}],
                          r"measure one\.before_step notes something under 'train_loss' .*as the method"),
    "one note": ([{"trained": noting("mine")}, {"step": noting("mine")}],
                 r"measure one\.trained notes something under 'mine' .*as measure two\.step does; choose another"),
    "a note of ours": ([{"trained": noting("fisher_trace")}],
                       r"under 'fisher_trace' .*as measure fisher\.trained does"),
    "one figure": ([{"figures": lambda self, look: {"a": 1}}, {"figures": lambda self, look: {"a": 2}}],
                   r"measure two\.figures gives the figure 'a', as measure one\.figures does"),
    "a figure of ours": ([{"figures": lambda self, look: {"drift": 1}}], r"gives the figure 'drift'|drift\.figures"),
}  # fmt: skip


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("what", MEASURES)
def test_a_faulty_measure_is_one_line(what, executor):
    bodies, said = MEASURES[what]
    names = [("one", "two")[place] for place, _ in enumerate(bodies)]
    for name, body in zip(names, bodies, strict=True):
        register("measures", name, Measure, **body)
    with pytest.raises(SlotError, match=said) as error:
        play(measure=["fisher", "drift", *names], executor=executor)
    assert "\n" not in str(error.value)


def test_a_measure_may_note_often_and_under_names_of_its_own():
    register("measures", "one", Measure, step=noting("a"), trained=noting("b"), before_step=noting("a"))
    for executor in EXECUTORS:
        play(measure="one,fisher", executor=executor)


def test_a_measure_that_gives_text_is_told_what_is_expected():
    def figures(self, look):
        return {"a": "x"}

    name = make("measures", Measure, figures=figures)
    with pytest.raises(SlotError, match=r"gives figures in which 'a' must be a number, None, .* got str 'x'"):
        play(measure=name)
