"""A notebook: methods are written, run, edited and run again in one process."""

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

SMALL = 'data="digits", clients=4, rounds=2, model="mlp", executor="serial"'

WRITE = """
from unskew import Method, param, registries, tree
import unskew

@registries.methods.register("shorter")
class Shorter(Method):
    '''FedAvg with a shorter step.'''
    factor: float = param(default=0.5, doc="factor")

    def update(self, s, server, merged):
        return super().update(s, server, {**merged, "delta": tree.scale(merged["delta"], self.factor)})
"""


def execute(*cells, folder):
    """Runs the cells in one kernel; gives what each printed."""
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    NotebookClient(book, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(folder)}}).execute()
    return ["".join(o.get("text", "") for o in cell["outputs"] if o.get("name") == "stdout") for cell in book.cells]


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What a session printed: written, run, edited, run again, compared before and after the edit."""
    folder = tmp_path_factory.mktemp("notebook")
    show = "print(float(sum(v.double().sum() for v in {}.server['model'].values())))"
    compare = f'cells = unskew.compare(["fedavg", "shorter"], seeds=1, out="both", {SMALL})\n'
    compare += "print([cell.reused for cell in cells], [cell.summary['accuracy']['last'] for cell in cells])"
    return execute(
        WRITE,
        f'print(unskew.run("fedavg", {SMALL}).accuracy)',
        f'first = unskew.run("shorter", {SMALL})\n' + show.format("first"),
        compare,
        WRITE.replace("self.factor)", "0.25 * self.factor)"),
        f'second = unskew.run("shorter", {SMALL})\n' + show.format("second"),
        f'third = unskew.run("shorter(factor=0.125)", {SMALL})\n' + show.format("third"),
        compare,
        compare,
        f'print(unskew.run("shorter", {SMALL.replace("serial", "pool")}).accuracy, second.accuracy)',
        f'print(unskew.run(Shorter(factor=0.25), {SMALL}).accuracy)',
        folder=folder,
    )  # fmt: skip


def test_a_class_that_was_edited_is_the_one_that_runs(said):
    first, second, third = (float(said[place]) for place in (2, 5, 6))
    assert first != second
    assert second != third


def test_a_comparison_runs_an_edited_class_again_and_nothing_else(said):
    assert said[3].startswith("[False, False]")
    assert said[7].startswith("[True, False]")
    assert said[8].startswith("[True, True]")
    assert said[7].split("] ")[1] == said[8].split("] ")[1]


def test_a_pool_gives_the_same_there(said):
    pooled, serial = said[9].split()
    assert pooled == serial
    assert 0 < float(said[10]) <= 1


def test_a_misspelt_slot_is_one_line_there(tmp_path):
    with pytest.raises(CellExecutionError, match=r"uplaod.*upload"):
        execute(WRITE.replace("def update(self, s, server, merged)", "def uplaod(self, c, params)"), folder=tmp_path)
