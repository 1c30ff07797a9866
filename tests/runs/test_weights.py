"""Runs that start from given weights, and with parts that stay as they are."""

import pytest
import torch
from safetensors.torch import load_file, save_file

import unskew
from awkward import quick
from small_runs import SMALL, equal, said
from support import initial_model
from unskew import InputError
from unskew.core.method import methods
from unskew.core.wrapper import Wrapper
from unskew.runs.config import from_table

HEAD = ("head.weight", "head.bias")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A run of another seed, and its weights as others would save them."""
    folder = tmp_path_factory.mktemp("weights")
    result = unskew.run(**{**SMALL, "seed": 7}, out=folder / "run")
    save_file(result.server["model"], folder / "plain.safetensors")
    save_file({n: v for n, v in result.server["model"].items() if n not in HEAD}, folder / "body.safetensors")
    save_file({n: v.double() for n, v in result.server["model"].items()}, folder / "double.safetensors")
    unskew.run(**{**SMALL, "method": "fedper"}, out=folder / "personal")
    (folder / "pickle.pt").write_bytes(b"\x80\x02 no tensors here")
    return folder


def play(**options):
    return unskew.run(**{**SMALL, **options})


def test_a_run_starts_from_the_weights_wherever_they_come_from(place):
    trained = load_file(place / "plain.safetensors")
    from_run, plain, given = (
        play(init=init, seed=3) for init in (place / "run" / "model.safetensors", place / "plain.safetensors", trained)
    )
    assert equal(from_run, plain) and equal(plain, given) and not equal(plain, play(seed=3))
    assert from_run.run.hash == plain.run.hash == given.run.hash != play(seed=3).run.hash
    assert from_run.rounds[0]["accuracy"] == unskew.open(place / "run").summary["accuracy"]["last"]


def test_a_part_of_them(place):
    result = play(init=place / "body.safetensors", init_only="body.*", rounds=1, lr=1e-30)
    body, seed = load_file(place / "body.safetensors"), play(rounds=1, lr=1e-30).server["model"]
    assert all(torch.equal(value, result.server["model"][name]) for name, value in body.items())
    assert all(torch.equal(seed[name], result.server["model"][name]) for name in HEAD)
    assert not torch.equal(seed["body.1.weight"], result.server["model"]["body.1.weight"])


def test_resuming_and_extending_checks_the_file(place, tmp_path):
    file = tmp_path / "start.safetensors"
    file.write_bytes((place / "plain.safetensors").read_bytes())
    unskew.run(**SMALL, init=file, freeze=["body.*"], out=tmp_path / "run")
    long = play(init=file, freeze=["body.*"], rounds=3)
    assert equal(unskew.extend(tmp_path / "run", 3, out=tmp_path / "more"), long)
    save_file({name: value + 1 for name, value in load_file(file).items()}, file)
    for go_on in (unskew.resume, lambda folder: unskew.open(folder).model()):
        with pytest.raises(InputError, match="holds other weights than the run began with; restore the file"):
            go_on(tmp_path / "run")
    file.unlink()
    with pytest.raises(InputError, match=r"cannot read .*start.safetensors: No such file"):
        unskew.resume(tmp_path / "run")


def test_what_was_handed_over_is_handed_over_again(place, tmp_path):
    trained = load_file(place / "plain.safetensors")
    unskew.run(**SMALL, init=trained, out=tmp_path / "run")
    with pytest.raises(InputError, match="were handed over by a Python program; go on from Python"):
        unskew.resume(tmp_path / "run")
    with pytest.raises(InputError, match="hand over the weights it began with"):
        unskew.resume(tmp_path / "run", init={name: value + 1 for name, value in trained.items()})
    long = play(init=trained, rounds=3)
    assert equal(unskew.extend(tmp_path / "run", 3, init=trained), long)
    assert unskew.open(tmp_path / "run", init=trained).model()


def test_frozen_parts_stay_and_travel_once(place):
    frozen = [play(init=place / "plain.safetensors", freeze="body.*", executor=e) for e in ("serial", "pool")]
    assert equal(*frozen)
    start, end = load_file(place / "plain.safetensors"), frozen[0].server["model"]
    assert all(torch.equal(value, end[name]) == (name not in HEAD) for name, value in start.items())
    size = {part: sum(v.nbytes for n, v in start.items() if n.startswith(part)) for part in ("body", "head")}
    first, second = frozen[0].rounds[1:]
    assert first["bytes_down"] == 3 * sum(size.values()) and second["bytes_down"] == 3 * size["head"]
    assert first["bytes_up"] == second["bytes_up"] == 3 * size["head"]
    assert play(freeze="body.*").run.hash != play().run.hash


def test_a_fixed_classifier_comes_with_its_vectors(tmp_path, caplog):
    first = unskew.run(**{**SMALL, "method": "fedetf", "seed": 7}, out=tmp_path / "etf")
    again = play(method="fedetf", seed=3, init=tmp_path / "etf" / "model.safetensors", rounds=1)
    assert again.rounds[0]["accuracy"] == first.accuracy
    play(method="fedetf", seed=3, init=dict(first.server["model"]), rounds=1)
    assert "does not hold the network's constant head.vectors, which is as the seed draws it" in said(caplog)


def test_a_personal_run_s_server_is_no_whole_model(place, caplog):
    play(init=place / "personal" / "model.safetensors", init_only="body.*", rounds=1)
    assert "personal method" not in said(caplog)
    play(init=place / "personal" / "model.safetensors", rounds=1)
    assert "is of a personal method, at whose server nobody trained head.weight and others" in said(caplog)


REFUSED = {
    "part": ({"init": "body.safetensors"}, "lacks head.weight (2 of the network's 4 tensors); it holds"),
    "type": ({"init": "double.safetensors"}, "as float64 [8, 64], the network has float32 [8, 64]"),
    "shape": ({"init": "plain.safetensors", "model": "mlp(hidden=[9])"}, "as float32 [8, 64], the network has"),
    "other": ({"init": "plain.safetensors", "method": "fedetf", "init_only": "head.*"}, "lacks head.scale"),
    "strange": ({"init": "plain.safetensors", "model": "mlp(hidden=[])"}, "holds body.1.bias, which the network"),
    "gone": ({"init": "none.safetensors"}, "cannot read"),
    "pickle": ({"init": "pickle.pt"}, "is no safetensors file"),
    "only": ({"init": "plain.safetensors", "init_only": "tail.*"}, "init_only (--init-only): nothing matches 'tail.*'"),
    "only alone": ({"init_only": "body.*"}, "give --init, too"),
    "freeze": ({"freeze": "tail.*"}, "freeze (--freeze): nothing matches 'tail.*'; the network has body.1.weight"),
    "freeze all": ({"freeze": "*"}, "has nothing to train"),
    "number": ({"init": 3}, "init (--init): expected a .safetensors file or a dict of tensors, got int"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case, place):
    options, line = REFUSED[case]
    if isinstance(options.get("init"), str):
        options = {**options, "init": place / options["init"]}
    with pytest.raises(InputError) as error:
        play(**options)
    assert line in str(error.value) and "\n" not in str(error.value)


def test_a_comparison_looks_at_every_network_before_its_first_cell(place, tmp_path):
    options = {key: value for key, value in SMALL.items() if key != "method"}
    with pytest.raises(InputError, match=r"lacks head.scale .*take the part that fits with --init-only"):
        unskew.compare("fedavg,fedetf", seeds=1, init=place / "plain.safetensors", out=tmp_path / "all", **options)
    assert not (tmp_path / "all").exists()


def test_options_that_are_not_set_change_no_hash():
    plain = from_table({"rounds": 3})
    assert plain.hash == from_table({"rounds": 3, "init": "", "init_only": [], "freeze": []}).hash
    assert "init" not in plain.to_plain()


@pytest.mark.slow
@pytest.mark.parametrize("part", ["body.*", "head.*"])
@pytest.mark.parametrize("name", sorted(name for name in methods if not name.startswith("test_")))
def test_every_method_keeps_what_is_frozen_or_refuses(name, part):
    method = f"{name}(fedavg)" if issubclass(methods.get(name), Wrapper) else quick(name)
    try:
        result = play(method=method, freeze=part, local_test="holdout")
    except InputError as error:
        assert "\n" not in str(error)
        return
    before = initial_model(result.run)
    kept = [each for each in before if each.startswith(part[:-1])]
    assert kept and all(torch.equal(before[each], result.server["model"][each]) for each in kept)


def test_weights_that_a_program_hands_over_name_the_tensor(place):
    held = {name: tensor.clone() for name, tensor in unskew.open(place / "run").model().state_dict().items()}
    held["head.bias"][1] = float("nan")
    with pytest.raises(unskew.InputError, match=r"init \(--init\): handed over holds NaN .* in head\.bias"):
        unskew.run(**SMALL, init=held)
