"""FedAdam, FedYogi, FedAdagrad against numbers computed outside this project (UNSKEW_GOLDEN: other inputs), by hand."""

import pytest
import torch

from awkward import play
from support import golden, golden_names, play_vectors
from unskew.base.errors import InputError
from unskew.core.method import methods
from unskew.methods.fedopt import FedAdagrad, FedAdam, FedYogi

KINDS = {"adam": FedAdam, "yogi": FedYogi, "adagrad": FedAdagrad}


@pytest.mark.parametrize("rule", KINDS)
@pytest.mark.parametrize("name", golden_names("fedopt_server*"))
def test_golden_rounds(name, rule, tmp_path):
    file = golden(name)
    moves = torch.tensor(file.inputs["mean_deltas"], dtype=torch.float64)
    options = {key: value for key, value in file.hyper.items() if rule != "adagrad" or key != "beta2"}
    played = play_vectors(KINDS[rule], options, file.inputs["w0"], lambda r, _, w: w + moves[r], [3], tmp_path)
    assert len(moves) == len(file.expected[rule]["rounds"])
    for expected, (_, server) in zip(file.expected[rule]["rounds"], played, strict=False):
        for key, group in (("momentum", "momentum"), ("second", "second"), ("global_new", "model")):
            wanted = torch.tensor(expected[key], dtype=torch.float64)
            torch.testing.assert_close(server[group]["head.w"], wanted, rtol=file.rtol, atol=file.atol)


@pytest.mark.parametrize(("rule", "second"), [("adam", 4.5), ("yogi", 5.0), ("adagrad", 9.0)])
def test_by_hand(rule, second, tmp_path):
    # tau 1, so v starts at 1; beta1 = beta2 = 0.5, eta 0.5; Delta^2 = 8, Delta = 2 sqrt 2, m = sqrt 2
    # Adam v = 0.5 + 4, Yogi v = 1 + 0.5 * 8, Adagrad v = 1 + 8; w = 0.5 m / (sqrt v + 1)
    options = {"server_lr": 0.5, "beta1": 0.5, "tau": 1.0, **({} if rule == "adagrad" else {"beta2": 0.5})}
    played = play_vectors(KINDS[rule], options, [0.0], lambda _r, _c, w: w + 8**0.5, [1], tmp_path)
    _, server = next(played)
    assert server["second"]["head.w"].item() == pytest.approx(second)
    assert server["momentum"]["head.w"].item() == pytest.approx(2**0.5)
    assert server["model"]["head.w"].item() == pytest.approx(0.5 * 2**0.5 / (second**0.5 + 1))


def test_yogis_mean_of_squares_falls_by_the_square_only(tmp_path):
    # tau 2: v = 4; Delta 1: Adam 0.5 * 4 + 0.5 = 2.5, Yogi 4 - 0.5 = 3.5
    for rule, wanted in (("adam", 2.5), ("yogi", 3.5)):
        options = {"beta2": 0.5, "tau": 2.0}
        played = play_vectors(KINDS[rule], options, [0.0], lambda _r, _c, w: w + 1, [1], tmp_path / rule)
        assert next(played)[1]["second"]["head.w"].item() == wanted


@pytest.mark.parametrize("name", ["fedadam", "fedyogi", "fedadagrad"])
def test_clients_are_fedavgs_and_buffers_averaged(name):
    mine, plain = (play(method, rounds=1) for method in (name, "fedavg"))
    assert mine.rounds[1]["train_loss"] == plain.rounds[1]["train_loss"]
    assert all(mine.rounds[1][key] == plain.rounds[1][key] for key in ("bytes_up", "bytes_down"))
    for key, value in plain.server["buffers"].items():
        assert torch.equal(mine.server["buffers"][key], value)


def test_a_very_large_tau_is_momentum_alone():
    # sqrt(v) + tau is 2 tau up to v's change: with eta = 2 tau the step is m
    mine, plain = (play(method).server["model"] for method in ("fedadam(beta1=0, tau=1000, server_lr=2000)", "fedavg"))
    for name, value in plain.items():
        torch.testing.assert_close(mine[name], value, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("option", ["tau=0", "beta1=1", "server_lr=0", "beta2=1.5"])
def test_bad_options_are_refused_in_one_line(option):
    with pytest.raises(InputError, match=option.partition("=")[0]) as error:
        methods.build(f"fedadam({option})")
    assert "\n" not in str(error.value)
