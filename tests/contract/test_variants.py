"""Every variant and ablation that a file `variants/METHOD.txt` lists, one a line: short runs on awkward clients.

BatchNorm, a missing class, a client with one sample, clients that drop out; one by one and stacked. That `pool` gives
the same bits and that a cut run resumes exactly is shown for each method by the contract suite.
"""

from pathlib import Path

import pytest

from awkward import DATA, play
from support import gap, initial_model, mark_slow
from unskew.base import tree
from unskew.core.method import methods
from unskew.core.tolerance import find_tolerance

FILES = sorted((Path(__file__).parent / "variants").glob("*.txt"))
VARIANTS = [line.strip() for file in FILES for line in file.read_text().splitlines() if line.strip()]
OPTIONS = {"rounds": 2, "dropout": 0.3}


@pytest.mark.parametrize("spec", mark_slow(VARIANTS))
def test_a_variant_runs_one_by_one_and_stacked(spec, caplog):
    serial = play(spec, execution={"memory_format": "contiguous"}, **OPTIONS)
    assert tree.all_finite(serial.server) and not serial.summary["diverged"]
    assert serial.summary["excluded_replies"] == 0
    stacked = play(spec, execution={"executor": "stacked", "chunk": 3}, **OPTIONS)
    if methods.build(spec).stackable:
        assert "one by one" not in caplog.text
    assert gap(stacked, serial, initial_model(serial.run, DATA)) <= find_tolerance(methods.build(spec))
