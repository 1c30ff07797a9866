"""What a measure may look at, and how measures are written in options."""

import pytest
import torch

from awkward import DATA, config, play
from unskew.base.errors import InputError
from unskew.measures.base import Absent, Look, choose_test_samples
from unskew.runs import building
from unskew.runs.config import from_table


def task_of(run):
    return building.prepare(run, dataset=DATA).task


def test_features_are_those_of_the_samples_chosen_by_the_seed():
    task = task_of(config("fedavg"))
    some, again = choose_test_samples(task, 10), choose_test_samples(task, 10)
    assert torch.equal(some.index, again.index) and len(some.index.unique()) == 10
    assert len(choose_test_samples(task, 1000)) == len(DATA.test)
    server = task.method.init(task.server_context(0))
    look = Look(task, server, 0, False, True, {"round": 0}, [], [])
    spaces, y = look.features(10)
    assert spaces["extractor"][""].shape[0] == 10 and torch.equal(y, DATA.test.y[some.index])
    assert look.due(0) and look.due(5) and not Look(task, server, 3, False, True, {}, [], []).due(2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"measure": "drft"}, "did you mean drift"),
        ({"measure": "drift(x=1)"}, "drift has no argument 'x'"),
        ({"measure": "rank(samples=1)"}, "greater than or equal to 2"),
        ({"measure": "drift,drift"}, "named twice"),
        ({"measure": 3}, "expected names"),
        ({"measure": [3]}, "expected a measure"),
        ({"measure": "rank(space=projector)"}, "no head.projector"),
        ({"measure": "rounds_to(targets=[90])"}, "shares of 1"),
        ({"measure": "rounds_to(targets=[])"}, "shares of 1"),
        ({"measure": "hessian(top=5, most=7)"}, "need at least 8 products"),
        ({"measure": "rank", "pool_test": True, "evaluation": {"local_test": "holdout"}}, "pool_test"),
    ],
)
def test_bad_measures_are_one_clear_line(options, said, tmp_path):
    with pytest.raises(InputError, match=said):
        play("fedavg", tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_text_lists_and_tables_build_the_same():
    forms = ["drift,rank(samples=50)", ["drift", "rank(samples=50)"], ["drift", {"name": "rank", "samples": 50}]]
    built = [from_table({"measure": form}).measure for form in forms]
    assert built[0] == built[1] == built[2] and [m.name for m in built[0]] == ["drift", "rank"]
    assert from_table({"measure": built[0][0]}).measure == built[0][:1]


def test_notes_of_clients_are_averaged_over_the_used_ones():
    task = task_of(config("fedavg"))
    rows = [{"used": True, "a": 1.0}, {"used": True, "a": 2.0}, {"used": False, "a": 9.0}]

    def look(clients):
        return Look(task, {}, 1, False, True, {}, clients, [])

    assert look(rows).mean_notes("a", "b") == {"a": 1.5}
    assert look(rows[2:]).mean_notes("a") == {}  # nobody replied
    with pytest.raises(Absent, match="no local steps"):
        look(rows).mean_notes("b")
