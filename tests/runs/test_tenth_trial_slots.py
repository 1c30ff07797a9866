"""What a trial found in slots: parts that nobody trains, states that are forgotten, notes that go nowhere."""

import pytest
import torch

from small_runs import play, register, said
from unskew import Method, Wrapper, reducers, tree
from unskew.base import once
from unskew.base.errors import InputError, SlotError

HEAD = {"personal": ("head.*",)}


def method(name, **body):
    register("methods", name, Method, **body)
    return name


def wrapper(name, inner, **body):
    register("methods", name, Wrapper, **body)
    return f"{name}({inner})"


# ------------------------------------------------------------------------- a part of the global model nobody trains


@pytest.mark.parametrize("around", ["{}", "ditto({})", "finetuned({})"])
def test_a_personal_part_of_a_global_model_is_refused(around):
    name = method(f"tt_global_{len(around)}", **HEAD)
    with pytest.raises(InputError, match=f'{name}: nobody trains .*declare output = "personal", or "both" if'):
        play(method=around.format(name))


def test_whose_server_makes_that_part_may_report_it():
    def publish(self, s, server):
        return Method.publish(self, s, server)

    play(method=method("tt_makes", **HEAD, publish=publish), rounds=1)
    play(method=method("tt_fixed", **HEAD, frozen=("head.*",)), rounds=1)
    play(method=method("tt_own", **HEAD, output="personal"), rounds=1)


# --------------------------------------------------------------------------------------- what is forgotten or left out


def count(self, c, params):
    return {"count": {"n": torch.ones(1)}}


@pytest.mark.parametrize("executor", ["serial", "stacked"])
def test_a_keep_that_forgets_the_personal_part_is_a_fault(executor):
    name = method(f"tt_forgets_{executor}", **HEAD, output="personal", keep=count)
    with pytest.raises(SlotError, match=rf"{name}.keep must return the client's own part .*forgets head\.bias"):
        play(method=name, executor=executor)


def test_who_reads_its_own_part_elsewhere_may_keep_it_there():
    def keep(self, c, params):
        return {"mine": tree.select(params, c.names.match(self.personal))}

    def start(self, c):
        return {**c.received["model"], **c.state.get("mine", {})}

    play(method=method("tt_elsewhere", **HEAD, output="personal", keep=keep, start=start, personalise=start))


def empty(self, c, params):
    return {}


def hands_on(self, c, params):
    return {**self.inner.keep(c, params), **count(self, c, params)}


@pytest.mark.parametrize(("slot", "body"), [("keep", empty), ("keep", count)])
@pytest.mark.parametrize("executor", ["serial", "stacked"])
def test_a_wrapper_hands_on_what_the_method_inside_keeps(slot, body, executor):
    name = f"tt_drops_{body.__name__}_{executor}"
    with pytest.raises(SlotError, match=rf"{name}.keep leaves out what scaffold.keep gives \('control'\); hand on"):
        play(method=wrapper(name, "scaffold", keep=body), executor=executor)
    play(method=wrapper(f"{name}_not", "scaffold", keep=hands_on), executor=executor)


def drop(slot):
    return lambda self, *given: {k: v for k, v in getattr(self.inner, slot)(*given).items() if k != "control"}


DROPS = {
    "init": lambda self, s: drop("init")(self, s),
    "download": lambda self, s, server, client: drop("download")(self, s, server, client),
    "upload": lambda self, c, params: drop("upload")(self, c, params),
}


@pytest.mark.parametrize("slot", DROPS)
def test_a_wrapper_hands_on_what_the_method_inside_sends(slot):
    name = f"tt_drops_{slot}"
    with pytest.raises(SlotError, match=rf"{name}.{slot} leaves out what scaffold.{slot} gives \('control'\)"):
        play(method=wrapper(name, "scaffold", **{slot: DROPS[slot]}))


def test_a_wrapper_leaves_the_method_inside_as_it_is():
    def update(self, s, server, merged):
        object.__setattr__(self.inner, "server_lr", 0.001)
        return self.inner.update(s, server, merged)

    with pytest.raises(SlotError, match=r"tt_writes.update changes fedadam.server_lr in place"):
        play(method=wrapper("tt_writes", "fedadam", update=update))


# ---------------------------------------------------------------------------------------- numbers that are not finite


def test_a_publish_that_gives_nan_is_a_fault(tmp_path):
    def publish(self, s, server):
        model = tree.scale(server["model"], float("nan") if s.round == 2 else 1.0)
        return {**server, "model": model}

    with pytest.raises(SlotError, match=r"in round 2: tt_nan.publish gives NaN or infinite numbers \(group 'model'\)"):
        play(method=method("tt_nan", publish=publish), out=tmp_path / "run")
    assert not (tmp_path / "run" / "model.safetensors").exists()


@pytest.mark.parametrize("slot", ["predict", "personalise"])
def test_nan_in_the_tests_points_to_the_slot(slot, caplog):
    def predict(self, c, params, x):
        return c.forward(params, x, "eval").logits * float("nan")

    def personalise(self, c):
        return tree.scale(c.received["model"], float("nan"))

    body = {"predict": predict} if slot == "predict" else {"personalise": personalise, "output": "personal"}
    result = play(method=method(f"tt_nan_{slot}", **body))
    assert result.summary["diverged"]
    assert f"the run diverged; lower lr, or look at tt_nan_{slot}.{slot}" in said(caplog)


# -------------------------------------------------------------------------------------- what would have no effect


def test_a_note_at_the_server_points_to_the_record():
    def update(self, s, server, merged):
        s.diagnostics.note("mine", 1.0)
        return Method.update(self, s, server, merged)

    with pytest.raises(SlotError, match=r"tt_notes.update notes 'mine' .*s.record\[\"mine\"\]"):
        play(method=method("tt_notes", update=update))


def test_a_server_may_take_gradients_of_its_own():
    def update(self, s, server, merged):
        s.aside().diagnostics.note("mine", 1.0)
        s.diagnostics.note("train_loss", 1.0)  # as Method.gradient does
        return Method.update(self, s, server, merged)

    play(method=method("tt_trains", update=update))


@pytest.mark.parametrize("executor", ["serial", "stacked"])
def test_a_loss_that_writes_to_parameters_later_is_found(executor):
    def loss(self, c, params, batch):
        if c.step == 3:
            with torch.no_grad():
                params["head.bias"].mul_(0.5)
        return Method.loss(self, c, params, batch)

    name = method(f"tt_writes_{executor}", loss=loss)
    with pytest.raises(SlotError, match=rf'{name}.loss changes params\["head.bias"\] in place'):
        play(method=name, batch=64, executor=executor)


SILENT = {
    "correction": (
        {"correction": lambda self, c, params, batch: None},
        "{}.correction never returns anything, so that nothing is added to the gradient (is a return missing?)",
    ),
    "reducers": (
        {"survey_reducers": {"counts": reducers.total}},
        "{} declares survey_reducers and has no survey, so that nothing is sent before training; define survey(c)",
    ),
    "survey": (
        {"survey_reducers": {"counts": reducers.total}, "survey": lambda self, c: {}},
        "{} has a reducer for 'counts', which no client sent in round 1; they sent nothing",
    ),
}


@pytest.mark.parametrize("case", SILENT)
def test_slots_without_effect_are_said_once(case, caplog):
    once.warn_once.cache_clear()
    body, line = SILENT[case]
    name = method(f"tt_silent_{case}", **body)
    play(method=name)
    assert said(caplog).count(name) == 1 and line.format(name) in said(caplog)


def test_a_correction_that_returns_something_now_and_then_is_none_of_these(caplog):
    def correction(self, c, params, batch):
        if c.round == 1:
            return None
        return tree.zeros_like(tree.select(params, c.trainable))

    play(method=method("tt_sometimes", correction=correction))
    assert "tt_sometimes" not in said(caplog)


# ------------------------------------------------------------------------------------------- lines that say what came
