"""What a comparison says of its accuracies."""

from unskew.report.comparison import table
from unskew.report.tables import render
from unskew.runs.comparison import CellResult

GLOBAL, PERSONAL = "global model", "clients' own models, pooled"


def played(method, accuracy_of, accuracy=0.5):
    summary = {
        "accuracy": {"last": accuracy}, "accuracy_of": accuracy_of, "personal": None, "seconds": {"clients": 1.0},
        "bytes_up": 1, "bytes_down": 1, "diverged": False,
    }  # fmt: skip
    return CellResult(method=method, seed=0, folder=None, summary=summary, rounds=[], reused=False)


def test_a_personal_methods_accuracy_is_marked_and_not_ranked_beside_global_ones():
    made = table([played("a", GLOBAL, 0.5), played("b", PERSONAL, 0.9), played("c", GLOBAL, 0.6)], "t")
    assert made.notes[0].startswith("accuracy: on the global test set")
    assert made.notes[1].startswith("personal: accuracy of the clients' own models")
    assert {name: cells[0].mark for name, cells in made.rows} == {"a": "second", "b": "", "c": "best"}
    assert "| `b` (personal) | 90.00 |" in render(made, "md") and "| `a` |" in render(made, "md")
    assert "b (personal) &" in render(made, "latex")


def test_personal_methods_alone_are_pooled_and_ranked():
    made = table([played("b", PERSONAL, 0.9), played("c", PERSONAL, 0.6)], "t")
    assert made.notes[0].startswith("accuracy: pooled over the clients' own test sets")
    assert not any(note.startswith("personal") for note in made.notes) and made.personal == ()
    assert made.rows[0][1][0].mark == "best"
