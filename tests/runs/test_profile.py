"""Where the seconds go: every moment is charged once."""

import pytest

from unskew.core import profile
from unskew.core.profile import PARTS, Profile
from unskew.runs import engine
from unskew.runs.config import from_table


def test_parts_inside_parts_are_charged_once(monkeypatch):
    now = iter(range(100))
    monkeypatch.setattr(profile.time, "perf_counter", lambda: float(next(now)))
    watch = Profile()
    with watch.part("rest"):  # 0
        with watch.part("update"), watch.part("data"):  # 1, 2
            pass  # 3, 4
        with watch.part("evaluation"), watch.part("forward"), watch.part("waiting"):  # 5, 6, 7
            pass  # 8, 9, 10
    # 11
    assert watch.seconds == {"rest": 3.0, "update": 2.0, "data": 1.0, "evaluation": 4.0, "waiting": 1.0}


@pytest.mark.parametrize(
    ("executor", "parts"),
    [
        ({"executor": "serial"}, PARTS.keys() - {"waiting"}),
        ({"executor": "pool", "workers": 2}, PARTS.keys()),
        ({"executor": "stacked", "chunk": 3}, PARTS.keys() - {"waiting"}),
    ],
)
def test_a_run_fills_every_part_and_stays_the_same_run(executor, parts):
    table = {"clients": 6, "split": "iid", "rounds": 3, "model": "mlp", "execution": executor}
    watch = Profile()
    profiled = engine.run(from_table(table), profile=watch)
    assert {name for name, seconds in watch.seconds.items() if seconds > 0} >= parts
    plain = engine.run(from_table(table))
    assert all(plain.server["model"][n].equal(v) for n, v in profiled.server["model"].items())
