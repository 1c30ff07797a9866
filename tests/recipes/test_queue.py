"""`unskew reproduce --queue`: what its file may say, what comes from the command line, and what its tables keep."""

import logging
from pathlib import Path

import pytest

from unskew.base.errors import InputError
from unskew.cli import main
from unskew.recipes import queue as queues
from unskew.recipes.queue import read_queue
from unskew.runs.folder import RunFolder

ONE_ROW = ["fedas/t4", "--columns", "P=0.2", "--rows", "PA=1, CS=1", "--scale", "smoke"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "is empty"),
        ("fedas/t3 --rows", "every option needs a value"),
        ("fedas/t3 --method fedavg", "expected --rows, --columns, --scale or --seeds"),
        ("fedas/t3 --dry-run", "expected --rows, --columns, --scale or --seeds, got '--dry-run'"),
        ("fedas/t3 --scale huge", "--scale is one of full, cpu, smoke"),
        ("fedas/t3 --seeds 0", "--seeds is a number of at least 1"),
        ("fedas/t3 --rows nobody", "has no row 'nobody'"),
        ("fedas/t77", "there is no table or figure"),
        ("fedas/t3 --rows 'fedas", "close the quotes"),
        ("fedas/fig4a --rows fedas", "line 1: --rows is for tables, and fedas/fig4a is a figure"),
        ("fedas/fig4a --seeds 2", "--seeds is for tables"),
    ],
)
def test_bad_queues_are_one_line(tmp_path, text, line):
    (tmp_path / "queue.txt").write_text(text)
    with pytest.raises(InputError, match=line):
        read_queue(tmp_path / "queue.txt")


def test_windows_marks_and_line_ends_are_no_part_of_a_queue(tmp_path):
    (tmp_path / "queue.txt").write_bytes(b"\xef\xbb\xbffedas/t3 --seeds 1\r\n\r\nfedblade/t11\r\n")
    assert [line.name for line in read_queue(tmp_path / "queue.txt")] == ["fedas/t3", "fedblade/t11"]


def test_a_queue_in_another_encoding_is_one_line(tmp_path):
    (tmp_path / "queue.txt").write_bytes("fedas/t3 # für später".encode("latin-1"))
    with pytest.raises(InputError, match=r"queue.txt: it is no UTF-8 text; give a text file"):
        read_queue(tmp_path / "queue.txt")


def test_a_queue_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="cannot read the queue"):
        read_queue(Path(tmp_path / "none.txt"))


@pytest.mark.parametrize(
    "written, during, after",
    [("/autogroup-7 nice 3\n", "19", "3"), ("", "", ""), (None, None, None)],
    ids=["terminal", "no terminal", "another system"],
)
def test_a_queue_lets_other_terminals_first(monkeypatch, tmp_path, written, during, after):
    """Priorities alone count among the processes of one terminal."""

    terminal, seen = tmp_path / "autogroup", []
    if written is not None:
        terminal.write_text(written)

    def read():
        return terminal.read_text() if terminal.exists() else None

    monkeypatch.setattr(queues, "TERMINAL", terminal)
    monkeypatch.setattr(queues, "play_here", lambda *given, **options: seen.append(read()))
    queues.work([], 1)
    assert seen == [during] and read() == after


# -------------------------------------------------------------------------------------------------- on the command line


def call(capsys, *words):
    """Exit code, standard output, standard error."""
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    said = capsys.readouterr()
    return ended.value.code, said.out, said.err


@pytest.fixture
def queue(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("UNSKEW_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "queue.txt"


@pytest.mark.parametrize("option", [["--scale", "smoke"], ["--seeds", "2"], ["--json"], ["--rows", "x"], ["--list"]])
def test_a_queue_refuses_options_that_are_in_its_file(queue, capsys, option):
    queue.write_text("fedblade/t11\n")
    code, _, errors = call(capsys, "reproduce", "--queue", str(queue), *option)
    assert code == 2 and "--queue takes tables, rows, columns, scale and seeds from its file" in errors


def test_a_dry_run_of_a_queue_runs_nothing(queue, capsys):
    queue.write_text('fedas/t4 --columns "P=0.2" --rows "PA=1, CS=1" --seeds 1 --scale smoke\nfedblade/t11\n')
    code, out, _ = call(capsys, "reproduce", "--queue", str(queue), "--dry-run", "-q")
    assert code == 0 and "fedas/t4" in out and "fedblade/t11" in out
    assert not (queue.parent / "reproductions").exists()


def test_a_wrong_column_of_a_queue_is_named_with_its_line(queue, capsys):
    queue.write_text('# first\nfedas/t4 --columns "P=0.9"\n')
    code, _, errors = call(capsys, "reproduce", "--queue", str(queue))
    assert code == 2 and "queue.txt, line 2: fedas/t4 has no column 'P=0.9'" in errors.replace("\n", " ")


def test_a_table_of_other_cells_is_kept(queue, capsys, caplog):
    words = ["reproduce", "fedas/t4", "--seeds", "1", "--scale", "smoke", "-q", "--rows"]
    folder = queue.parent / "reproductions/smoke/fedas-t4"
    for rows in ("PA=1, CS=1", "PA=0, CS=0", "PA=0, CS=0"):
        assert call(capsys, *words, rows, "--columns", "P=0.2")[0] == 0
    assert "PA=0" in (folder / "table.md").read_text()
    [earlier] = (folder / "earlier").iterdir()  # the same cells again replace their own table
    assert "| PA=1, CS=1 |" in (earlier / "table.md").read_text()
    queue.write_text('fedas/t4 --columns "P=0.2" --rows "PA=1, CS=1" --seeds 1 --scale smoke\n'
                     'fedas/t4 --columns "P=0.2" --rows "PA=0, CS=0" --seeds 1 --scale smoke\n')  # fmt: skip
    with caplog.at_level(logging.WARNING):
        assert call(capsys, "reproduce", "--queue", str(queue), "--jobs", "1", "-q")[0] == 0
    both = (folder / "table.md").read_text()
    assert "| PA=1, CS=1 |" in both and "| PA=0, CS=0 |" in both


def test_a_damaged_run_is_named_and_everything_else_is_written(queue, capsys):
    """Its figure is left out of its table; the other row, the other table and the figure are there."""
    queue.write_text('fedas/t4 --columns "P=0.2" --rows "PA=0, CS=0; PA=1, CS=1" --seeds 1 --scale smoke\n'
                     "fedas/fig4a --scale smoke\nfedblade/t11\n")  # fmt: skip
    words = ["reproduce", "--queue", str(queue), "--jobs", "1", "-q"]
    assert call(capsys, *words)[0] == 0
    out = queue.parent / "reproductions/smoke"
    whole = (out / "fedas-t4/table.csv").read_text()
    [damaged] = (out / "runs").glob("fedper-*")
    text = (damaged / "rounds.jsonl").read_text()
    (damaged / "rounds.jsonl").write_text(text[:-40])
    for path in ("smoke/fedas-fig4a/figure.png", "full/fedblade-t11/table.csv"):
        (queue.parent / "reproductions" / path).unlink()
    code, _, errors = call(capsys, *words)
    [line] = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert code == 2 and "rounds.jsonl is damaged at line" in line
    assert f"or move {damaged} away, and the same command plays this run from its start" in line
    rows = (out / "fedas-t4/table.csv").read_text().splitlines()
    assert rows[1].endswith("· not run") and rows[2] == whole.splitlines()[2]
    assert (out / "fedas-fig4a/figure.png").exists()
    assert (queue.parent / "reproductions/full/fedblade-t11/table.csv").exists()
    damaged.rename(queue.parent / "away")  # as it says
    assert call(capsys, *words)[0] == 0
    assert (out / "fedas-t4/table.csv").read_text() == whole


def test_a_table_that_cannot_be_written_does_not_keep_the_others_from_it(queue, capsys):
    queue.write_text('fedas/t4 --columns "P=0.2" --rows "PA=1, CS=1" --seeds 1 --scale smoke\nfedblade/t11\n')
    (queue.parent / "reproductions/smoke").mkdir(parents=True)
    (queue.parent / "reproductions/smoke/fedas-t4").touch()  # a file where the table's folder belongs
    code, out, errors = call(capsys, "reproduce", "--queue", str(queue), "--jobs", "1", "-q")
    assert code == 2 and "fedas-t4" in errors and "Traceback" not in errors
    assert "fedblade/t11: 6 of 6 figures" in out
    assert (queue.parent / "reproductions/full/fedblade-t11/table.csv").exists()


def test_every_run_that_fails_is_named(queue, capsys):
    """The first is the error at the end."""
    queue.write_text('fedas/t4 --columns "P=0.2" --seeds 1 --scale smoke\n')
    words = ["reproduce", "--queue", str(queue), "--jobs", "1", "-q"]
    assert call(capsys, *words)[0] == 0
    runs = queue.parent / "reproductions/smoke/runs"
    broken = sorted(path for path in runs.iterdir() if path.is_dir())[:2]
    for run in broken:
        (run / "summary.json").unlink()
        for name in run.glob("checkpoint/*.safetensors"):
            name.write_bytes(b"")
    code, _, errors = call(capsys, *words)
    said = " ".join(errors.split())
    assert code == 2 and all(f"{run.name} failed: no checkpoint in" in said for run in broken)


def test_seeds_beyond_the_paper_s_are_said(queue, capsys):
    words = ["reproduce", *ONE_ROW, "--dry-run", "-q"]
    paper = "seeds 3, 4: not the paper's, which end with 2"
    assert paper in call(capsys, *words, "--seeds", "5")[1] and paper not in call(capsys, *words, "--seeds", "3")[1]


def test_a_data_folder_that_is_none_is_named(queue, capsys, monkeypatch):
    monkeypatch.setenv("UNSKEW_DATA", str(queue.parent / "nowhere"))
    code, _, errors = call(capsys, "reproduce", "fedas/t4", "--seeds", "1", "-q")
    assert code == 2 and "nowhere', which does not exist" in errors
    (queue.parent / "file").touch()
    monkeypatch.setenv("UNSKEW_DATA", str(queue.parent / "file"))
    code, _, errors = call(capsys, "reproduce", "fedas/t4", "--seeds", "1", "-q")
    assert code == 2 and "which is a file; name the folder that holds the data sets" in errors
    assert call(capsys, "data", "digits")[0] == 0  # which needs no file


def test_the_advice_to_move_a_run_away_is_for_damaged_ones_only(queue, capsys):
    """Of one that another run of this program works on it would be harmful."""
    words = ["reproduce", *ONE_ROW, "--seeds", "1", "--jobs", "1", "-q"]
    advice = "away, and the same command plays this run from its start"
    assert call(capsys, *words)[0] == 0
    [run] = [path for path in (queue.parent / "reproductions/smoke/runs").iterdir() if path.is_dir()]
    (run / "summary.json").unlink()
    with RunFolder(run).lock():
        code, _, errors = call(capsys, *words)
    assert code == 2 and "wait until that run ends" in errors and advice not in errors
    for name in run.glob("checkpoint/*.safetensors"):
        name.write_bytes(b"")
    code, _, errors = call(capsys, *words)
    assert code == 2 and "no checkpoint in" in errors and f"or move {run} {advice}" in errors


@pytest.mark.parametrize("words", [["reproduce", "--queue="], ["run", "--out="], ["resume", ""], ["deploy", "run", ""]])
def test_an_empty_path_is_not_the_current_folder(queue, capsys, words):
    code, _, errors = call(capsys, *words)
    assert code == 2 and "a path is expected, and this is empty" in errors
    assert list(queue.parent.iterdir()) == []
