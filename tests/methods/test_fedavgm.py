"""FedAvgM against numbers computed outside this project, with a pencil; identities (UNSKEW_GOLDEN: other inputs)."""

import pytest
import torch

from awkward import play
from support import golden, golden_names, play_vectors
from unskew.base.errors import InputError
from unskew.core.method import methods
from unskew.methods.fedavgm import FedAvgM


@pytest.mark.parametrize("damped", [False, True])
@pytest.mark.parametrize("name", golden_names("fedavgm_server*"))
def test_golden_rounds(name, damped, tmp_path):
    file = golden(name)
    moves = torch.tensor(file.inputs["mean_deltas"], dtype=torch.float64)
    assert len(moves) == len(file.expected["rounds"])
    played = play_vectors(
        FedAvgM, {**file.hyper, "damped": damped}, file.inputs["w0"], lambda r, _, w: w + moves[r], [3], tmp_path
    )
    keys = ("momentum_damped", "global_damped") if damped else ("momentum", "global_new")
    for expected, (_, server) in zip(file.expected["rounds"], played, strict=False):
        for key, group in zip(keys, ("velocity", "model"), strict=True):
            wanted = torch.tensor(expected[key], dtype=torch.float64)
            torch.testing.assert_close(server[group]["head.w"], wanted, rtol=file.rtol, atol=file.atol)


def test_by_hand():
    # beta 0.5, mean differences 1 and 2: v = 1, then 0.5 * 1 + 2 = 2.5; w = 0 + 1 + 2.5
    # damped: v = 0.5, then 0.25 + 1 = 1.25; w = 0.5 + 1.25
    for damped, wanted in ((False, 3.5), (True, 1.75)):
        server = {"model": {"w": torch.zeros(1)}, "buffers": {}, "velocity": {"w": torch.zeros(1)}}
        for difference in (1.0, 2.0):
            merged = {"delta": {"w": torch.full((1,), difference)}}
            server = FedAvgM(beta=0.5, damped=damped).update(None, server, merged)
        assert server["model"]["w"].item() == wanted


@pytest.mark.parametrize("spec", ["fedavgm(beta=0)", "fedavgm(beta=0, damped=true)"])
def test_without_momentum_it_is_fedavg(spec):
    mine, plain = (play(method, rounds=3).server for method in (spec, "fedavg"))
    for group in ("model", "buffers"):
        assert all(torch.equal(mine[group][name], value) for name, value in plain[group].items())


def test_the_first_round_is_fedavgs_and_the_second_is_not():
    for rounds, same in ((1, True), (2, False)):
        mine, plain = (play(method, rounds=rounds).server["model"] for method in ("fedavgm", "fedavg"))
        assert all(torch.equal(mine[name], value) for name, value in plain.items()) is same


def test_buffers_have_no_momentum():
    mine = play("fedavgm").server
    assert all("running" not in name for name in mine["velocity"])


@pytest.mark.parametrize("beta", [-0.1, 1.0])
def test_a_momentum_that_cannot_work_is_refused_in_one_line(beta):
    with pytest.raises(InputError, match="beta") as error:
        methods.build(f"fedavgm(beta={beta})")
    assert "\n" not in str(error.value)
