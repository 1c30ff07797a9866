"""The files of comparisons in one folder: the newest at the top, others kept; cut off at any moment nothing is lost."""

import json
from pathlib import Path

import pytest

from unskew.base.errors import InputError
from unskew.report.files import NAMES, check_place, put_in_place, writing_place


def make(folder, text, runs, metric="last", names=NAMES):
    """Files of a comparison that all hold a text of its own."""
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_text(text)
    table = {"title": text, "rows": [], "notes": [], "comparison": {"metric": metric, "runs": runs}}
    (folder / "table.json").write_text(json.dumps(table))
    return folder


def read(folder):
    return {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}


def whose(folder):
    """The text of all files in a folder, which must be one comparison's."""
    found = read(folder)
    title = json.loads(found.pop("table.json"))["title"]
    assert set(found.values()) <= {title}
    return title


@pytest.fixture
def out(tmp_path):
    return make(tmp_path / "out", "one", ["a", "b"])


def test_another_one_is_kept_with_all_its_files(tmp_path, out):
    before = read(out)
    kept = put_in_place(make(tmp_path / "made", "two", ["b", "c"], names=NAMES[:3]), out)
    assert kept.parent == out / "earlier" and read(kept) == before
    assert whose(out) == "two" and set(read(out)) == set(NAMES[:3])


@pytest.mark.parametrize(
    ("runs", "metric", "kept"),
    [(["a", "b", "c"], "last", False), (["b", "a"], "last", False), (["a"], "last", True), (["a", "b"], "best", True)],
)
def test_one_that_holds_all_of_the_earlier_replaces_it(tmp_path, out, runs, metric, kept):
    where = put_in_place(make(tmp_path / "made", "two", runs, metric), out)
    assert (where is not None) == kept == (out / "earlier").exists()
    assert whose(out) == "two"


def test_back_and_forth(tmp_path, out):
    for text, runs in (("two", ["c"]), ("one again", ["a", "b"]), ("two again", ["c"])):
        put_in_place(make(tmp_path / "made", text, runs), out)
        assert whose(out) == text and len(list((out / "earlier").iterdir())) == 1


def test_what_the_user_put_below_earlier_stays(tmp_path, out):
    kept = put_in_place(make(tmp_path / "made", "two", ["c"]), out)
    (kept / "notes.txt").write_text("mine")
    put_in_place(make(tmp_path / "made", "one again", ["a", "b"]), out)
    assert read(kept) == {"notes.txt": "mine"}


@pytest.mark.parametrize("runs", [["c"], ["a", "b", "c"]])
@pytest.mark.parametrize("moment", range(2 * len(NAMES)))
def test_cut_off_at_any_moment(tmp_path, out, monkeypatch, moment, runs):
    made, left, replace = make(tmp_path / "made", "two", runs), [moment], Path.replace

    def cut_off(self, target):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", cut_off)
        with pytest.raises(KeyboardInterrupt):
            put_in_place(made, out)
    (kept,) = (out / "earlier").iterdir()
    texts = {text for name in NAMES[1:] for folder in (out, kept) if (text := read(folder).get(name))}
    assert "one" in texts and sum("one" in (read(f).get(n) or "") for n in NAMES for f in (out, kept)) == len(NAMES)
    if (out / "table.json").exists():
        whose(out)  # never a mixture
    else:
        assert not read(out)
    put_in_place(make(tmp_path / "again", "two", runs), out)
    assert whose(out) == "two" and set(read(out)) == set(NAMES)
    assert [whose(folder) for folder in (out / "earlier").glob("*") if read(folder)] in (["one"], [])
    if runs == ["c"]:
        assert whose(kept) == "one" and set(read(kept)) == set(NAMES)


def test_what_killed_processes_left_is_removed(tmp_path):
    (tmp_path / ".writing-old").mkdir()
    (tmp_path / ".writing-old" / "table.json").write_text("{}")
    with writing_place(tmp_path) as first, writing_place(tmp_path) as second:
        assert first.is_dir() and second.is_dir()  # who is at work keeps its own
        assert {path.name for path in tmp_path.iterdir()} == {first.name, second.name}
    assert not list(tmp_path.iterdir())


# ----------------------------------------------------------------------------------------- run files of a tuning


def tune(folder, text, runs, *methods, own=None):
    """Files of a tuning; `own`: what its run files hold instead."""
    make(folder, text, runs)
    (folder / "tuned").mkdir(exist_ok=True)
    for method in methods:
        (folder / "tuned" / f"{method}.toml").write_text(own or text)
    return folder


def read_tuned(folder):
    return {path.stem: path.read_text() for path in (folder / "tuned").glob("*")}


def test_run_files_of_an_earlier_tuning_go_with_its_table(tmp_path):
    out = tune(tmp_path / "out", "one", ["a", "b"], "fedavg", "fedprox")
    kept = put_in_place(tune(tmp_path / "made", "two", ["c"], "fedavg"), out)
    assert read_tuned(out) == {"fedavg": "two"} and whose(out) == "two"
    assert read_tuned(kept) == {"fedavg": "one", "fedprox": "one"} and whose(kept) == "one"
    put_in_place(tune(tmp_path / "made", "one", ["a", "b"], "fedavg", "fedprox"), out)
    assert read_tuned(out) == {"fedavg": "one", "fedprox": "one"}
    assert [whose(folder) for folder in (out / "earlier").iterdir()] == ["two"]  # the same one is not kept twice


def test_a_comparison_after_a_tuning_leaves_no_run_files_beside_itself(tmp_path):
    out = tune(tmp_path / "out", "one", ["a", "b"], "fedavg")
    kept = put_in_place(make(tmp_path / "made", "two", ["c"], names=NAMES[:3]), out)
    assert not (out / "tuned").exists() and read_tuned(kept) == {"fedavg": "one"}


def test_the_users_files_beside_run_files_stay(tmp_path):
    out = tune(tmp_path / "out", "one", ["a", "b"], "fedavg")
    (out / "tuned" / "notes.txt").write_text("mine")
    put_in_place(tune(tmp_path / "made", "two", ["c"], "fedavg"), out)
    assert read_tuned(out) == {"fedavg": "two", "notes": "mine"}


def test_edited_run_files_are_kept_also_from_the_same_tuning(tmp_path):
    out = tune(tmp_path / "out", "one", ["a", "b"], "fedavg", "fedprox")
    for edit in ("# my note", "# another"):
        (out / "tuned" / "fedavg.toml").write_text(edit)
        kept = put_in_place(tune(tmp_path / "made", "one", ["a", "b"], "fedavg", "fedprox"), out)
        assert read_tuned(out) == {"fedavg": "one", "fedprox": "one"} and not read(kept)
    assert read_tuned(kept) == {"fedavg": "# my note", "fedavg.2": "# another"}
    assert put_in_place(tune(tmp_path / "made", "one", ["a", "b"], "fedavg", "fedprox"), out) is None
    assert read_tuned(kept) == {"fedavg": "# my note", "fedavg.2": "# another"}


def test_run_files_that_belong_to_no_tuning_are_not_written_over(tmp_path):
    for out in (tmp_path / "empty", make(tmp_path / "compared", "one", ["a"], names=NAMES[:3])):
        (out / "tuned").mkdir(parents=True)
        (out / "tuned" / "fedavg.toml").write_text("mine")
        with pytest.raises(InputError, match=r"tuned/fedavg\.toml already exists and belongs to no tuning"):
            check_place(out, tuning=True)
        with pytest.raises(InputError, match=r"tuned/fedavg\.toml already exists and belongs to no tuning"):
            put_in_place(tune(tmp_path / "made", "two", ["c"], "fedavg"), out)
        put_in_place(make(tmp_path / "other", "three", ["d"], names=NAMES[:3]), out)
        assert read_tuned(out) == {"fedavg": "mine"}


@pytest.mark.parametrize("moment", range(2 * len(NAMES) + 3))
def test_a_tuning_cut_off_at_any_moment(tmp_path, monkeypatch, moment):
    out = tune(tmp_path / "out", "one", ["a", "b"], "fedavg", "fedprox")
    made, left, replace = tune(tmp_path / "made", "two", ["c"], "fedavg"), [moment], Path.replace

    def cut_off(self, target):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", cut_off)
        with pytest.raises(KeyboardInterrupt):
            put_in_place(made, out)
    put_in_place(tune(tmp_path / "again", "two", ["c"], "fedavg"), out)
    (kept,) = (out / "earlier").iterdir()
    assert whose(out) == "two" and read_tuned(out) == {"fedavg": "two"}
    assert whose(kept) == "one" and read_tuned(kept) == {"fedavg": "one", "fedprox": "one"}
