"""The processor on the documentation's page works as it says."""

import re
from pathlib import Path

from unskew.runs import building, engine
from unskew.runs.config import from_table

PAGE = Path(__file__).parents[2] / "docs" / "wire.md"


def test_the_page_s_own_processor_halves_the_bytes(tmp_path):
    plugin = tmp_path / "half.py"
    plugin.write_text(re.search(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)[1])
    table = {"clients": 4, "split": "iid", "rounds": 1, "model": "mlp", "plugins": [str(plugin)]}
    plain, half = (engine.run(from_table({**table, "wire": wire})) for wire in ("", "topk(share=1),half"))
    moved = {name: plain.server["model"][name] - value for name, value in
             building.prepare(plain.run).task.initial["model"].items()}  # fmt: skip
    assert half.rounds[1]["bytes_up"] == plain.rounds[1]["bytes_up"] * 6 // 4  # four of place, two of value
    for name, value in half.server["model"].items():
        gap = (value - plain.server["model"][name]).norm()
        assert 0 < gap < 1e-3 * moved[name].norm()
