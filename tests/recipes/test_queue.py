"""`unskew reproduce --queue`: what its file may say, what comes from the command line, and what its tables keep."""

import logging
from pathlib import Path

import pytest

from unskew.base.errors import InputError
from unskew.cli import main
from unskew.recipes import queue as queues
from unskew.recipes.queue import read_queue


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "is empty"),
        ("fedas/t3 --rows", "every option needs a value"),
        ("fedas/t3 --method fedavg", "expected --rows, --columns, --scale or --seeds"),
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


@pytest.mark.parametrize("option", [["--scale", "smoke"], ["--seeds", "2"], ["--json"], ["--rows", "x"]])
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
