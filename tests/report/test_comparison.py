"""What a comparison says of its accuracies."""

from unskew.report.comparison import table
from unskew.runs.comparison import CellResult


def played(method, accuracy_of):
    summary = {
        "accuracy": {"last": 0.5}, "accuracy_of": accuracy_of, "personal": None, "seconds": {"clients": 1.0},
        "bytes_up": 1, "bytes_down": 1, "diverged": False,
    }  # fmt: skip
    return CellResult(method=method, seed=0, folder=None, summary=summary, rounds=[], reused=False)


def test_a_personal_methods_accuracy_is_marked_beside_global_ones():
    notes = table([played("a", "global model"), played("b", "clients' own models, pooled")], "t").notes
    assert notes[0].startswith("accuracy: on the global test set")
    assert notes[1] == "accuracy of b: its clients' own models on their own test sets, unlike a global model's"


def test_personal_methods_alone_are_pooled():
    notes = table([played("b", "clients' own models, pooled")], "t").notes
    assert notes[0].startswith("accuracy: pooled over the clients' own test sets")
    assert not any("unlike" in note for note in notes)
