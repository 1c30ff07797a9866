"""Every variant and ablation that a file `variants/METHOD.txt` lists, one a line: short runs on awkward clients.

BatchNorm, a missing class, a client with one sample, clients that drop out; on every executor; cut and resumed.
"""

from pathlib import Path

import pytest

from awkward import DATA, config, play, rows_without_times
from support import STACKED_TOLERANCE, gap, initial_model
from unskew.base import tree
from unskew.core.method import methods
from unskew.runs import engine

FILES = sorted((Path(__file__).parent / "variants").glob("*.txt"))
VARIANTS = [line.strip() for file in FILES for line in file.read_text().splitlines() if line.strip()]
OPTIONS = {"rounds": 3, "dropout": 0.3}


@pytest.mark.parametrize("spec", VARIANTS)
def test_a_variant_runs_everywhere_and_resumes(spec, tmp_path, caplog):
    contiguous = {"memory_format": "contiguous", "checkpoint_every": 1}
    serial = play(spec, tmp_path / "serial", execution=contiguous, **OPTIONS)
    assert tree.all_finite(serial.server) and not serial.summary["diverged"]
    assert serial.summary["excluded_replies"] == 0

    pool = play(spec, execution={**contiguous, "executor": "pool", "workers": 2}, **OPTIONS)
    assert rows_without_times(pool) == rows_without_times(serial)

    stacked = play(spec, execution={"executor": "stacked", "chunk": 3}, **OPTIONS)
    if methods.build(spec).stackable:
        assert "one by one" not in caplog.text
    assert gap(stacked, serial, initial_model(serial.run, DATA)) < STACKED_TOLERANCE

    def stop_after_two(row):
        if row["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.run(config(spec, execution=contiguous, **OPTIONS), tmp_path / "cut", dataset=DATA, watch=stop_after_two)
    resumed = engine.resume(tmp_path / "cut", dataset=DATA)
    assert rows_without_times(resumed) == rows_without_times(serial)
    assert (tmp_path / "cut/model.safetensors").read_bytes() == (tmp_path / "serial/model.safetensors").read_bytes()
