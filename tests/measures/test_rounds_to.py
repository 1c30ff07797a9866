"""Rounds to an accuracy, in a summary and in a comparison's table."""

from unskew.measures.rounds_to import RoundsTo
from unskew.report.comparison import table
from unskew.runs.comparison import CellResult


def test_rounds_to_counts_rounds_not_tests():
    rows = [{"round": number, "accuracy": value} for number, value in ((0, 0.9), (5, 0.4), (10, 0.6), (15, 0.5))]
    assert RoundsTo(targets=(0.4, 0.5, 0.7)).summarise(rows) == {"rounds_to": {"0.4": 5, "0.5": 10, "0.7": None}}
    personal = [{"round": 0}, {"round": 1}, {"round": 2, "personal": {"pooled": 0.8}}]
    assert RoundsTo(targets=(0.8,)).summarise(personal) == {"rounds_to": {"0.8": 2}}


def test_a_comparison_shows_rounds_to_a_target():
    def cell(method, seed, rounds):
        summary = {
            "accuracy": {"last": 0.5}, "personal": None, "seconds": {"clients": 1.0}, "bytes_up": 1, "bytes_down": 1,
            "diverged": False, "rounds": 30, "measures": {"rounds_to": {"0.9": rounds}},
        }  # fmt: skip
        return CellResult(method, seed, None, summary, [], False)

    cells = [cell("a", 0, 20), cell("b", 0, 10), cell("a", 1, 30), cell("b", 1, None), cell("c", 0, None)]
    shown = table([*cells, cell("c", 1, None)], "title")
    assert shown.columns[-2:] == ("rounds to 90 %", "speed-up to 90 %")
    values = {name: [own.values for own in row[-2:]] for name, row in shown.rows}
    assert values == {"a": [(20, 30), (1, 1)], "b": [(10,), (2,)], "c": [(), ()]}
    assert any("within 30 rounds" in note for note in shown.notes)
