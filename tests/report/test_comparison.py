"""What a comparison says of its accuracies, and how its rows stand."""

import pytest

from report.made_runs import make_run
from unskew.cli import compare as command
from unskew.cli.output import console
from unskew.report.comparison import table
from unskew.report.curves import BEST, MOST, highlight
from unskew.report.facts import make_facts
from unskew.report.page import render_page
from unskew.report.reading import gather
from unskew.report.tables import render
from unskew.runs.comparison import CellResult

GLOBAL, PERSONAL = "global model", "clients' own models, pooled"


def played(method, accuracy_of, accuracy=0.5, own=None, output="", seed=0):
    clients = None if own is None else {"pooled": own, "mean": own, "worst_decile": own / 2}
    rounds = [{"round": n, "accuracy": accuracy} for n in (1, 2)] if accuracy_of == GLOBAL else [
        {"round": n, "personal": {"pooled": accuracy}} for n in (1, 2)]  # fmt: skip
    summary = {
        "accuracy": {"last": accuracy, "best_on_test": accuracy}, "accuracy_of": accuracy_of, "personal": clients,
        "seconds": {"clients": 1.0}, "bytes_up": 1, "bytes_down": 1, "diverged": False,
    }  # fmt: skip
    return CellResult(method, seed, None, summary, rounds, False, output)


def column(made, name):
    place = made.columns.index(name)
    return {method: cells[place] for method, cells in made.rows}


def test_global_and_personal_figures_stand_side_by_side():
    cells = [played("a", GLOBAL, 0.5, own=0.7), played("b", PERSONAL, 0.9, own=0.9), played("c", GLOBAL, 0.6, own=0.6)]
    made = table(cells, "t")
    assert made.columns[:4] == ("global %", "personal %", "clients %", "worst %")
    assert made.notes[0].startswith("global: the global model on the global test set, last; mean")
    assert made.notes[1].startswith("personal: the models that clients use, pooled")
    assert {name: cell.text for name, cell in column(made, "global %").items()} == {
        "a": "50.00", "c": "60.00", "b": "–"}  # fmt: skip
    # the same quantity for all of them, so it is ranked over all of them
    assert {name: (cell.text, cell.mark) for name, cell in column(made, "personal %").items()} == {
        "a": ("70.00", "second"), "c": ("60.00", ""), "b": ("90.00", "best")}  # fmt: skip
    assert "| `b` (personal) | – | **90.00** |" in render(made, "md") and "| `a` |" in render(made, "md")
    assert "b (personal) &" in render(made, "latex")
    assert [(heading, [name for name, _ in rows]) for heading, rows in made.blocks()] == [
        ("one global model", ["a", "c"]), ("a model for each client", ["b"])]  # fmt: skip


def test_a_method_with_both_models_has_both_figures_and_no_tag():
    both = played("r", GLOBAL, 0.5, own=0.8, output="both")
    both.summary.update(personal_accuracy={"last": 0.8}, accuracy_of=f"{GLOBAL}; personal_accuracy: {PERSONAL}")
    made = table([played("a", GLOBAL, 0.6, own=0.6, output="global"), both], "t")
    assert [column(made, name)["r"].text for name in ("global %", "personal %")] == ["50.00", "80.00"]
    assert made.tag("r") == "" and made.own == ("r",)


def test_a_tuned_method_is_among_the_personal_ones():
    plain, tuned = played("a", GLOBAL, 0.6, 0.6, "global"), played("f", GLOBAL, 0.6, 0.7, "tuned")
    made = table([plain, tuned], "t")
    assert made.own == ("f",) and column(made, "personal %")["f"].text == "70.00"
    panels = command.collect_curves([played("a", GLOBAL, output="global"), played("p", PERSONAL, output="personal"),
                                     played("f", GLOBAL, output="tuned")])  # fmt: skip
    assert [list(curves) for curves in panels.values()] == [["a"], ["p"]]  # f's global model is that of a


def test_other_metrics_say_what_global_models_do_not_have():
    cells = [played("a", GLOBAL, 0.5, own=0.7), played("b", PERSONAL, 0.9, own=0.9)]
    made = table(cells, "t", "best_on_test")
    assert [column(made, "personal %")[name].text for name in "ab"] == ["–", "90.00"]
    assert "– for a global model" in made.notes[1]


def test_time_and_bytes_are_relative_to_the_first_method_wherever_its_row_is():
    slow = played("p", PERSONAL, 0.9, own=0.9)
    slow.summary["seconds"] = {"clients": 4.0}
    made = table([slow, played("a", GLOBAL, 0.5, own=0.5)], "t")
    assert [name for name, _ in made.rows] == ["a", "p"]
    assert {name: cell.text for name, cell in column(made, "time ×").items()} == {"a": "0.25", "p": "1.00"}
    assert any("relative to p" in note for note in made.notes)


def many(seeds=3):
    """Forty-five methods over three seeds, as `--methods all` gives them."""
    names = [
        "fedavg",
        *(f"global{n:02}" for n in range(26)),
        "fedaf(ipc=10, steps=50, server_epochs=100, server_lr=0.01)",
    ]
    cells = []
    for seed in range(seeds):
        for n, name in enumerate(names):
            cells.append(played(name, GLOBAL, 0.4 + n / 100 + seed / 37, 0.5 + seed / 41, "global", seed))
        for n in range(17):
            cells.append(played(f"personal{n:02}", PERSONAL, 0.7 + n / 100 + seed / 43, 0.7, "personal", seed))
    return cells


def test_many_rows_are_sorted_within_their_blocks():
    made = table(many(), "t")
    (_, one), (_, own) = made.blocks()
    assert [name for name, _ in own] == [f"personal{n:02}" for n in reversed(range(17))]
    assert one[-1][0] == "fedavg" and one[0][0].startswith("fedaf")
    assert any("relative to fedavg" in note for note in made.notes)


def test_many_rows_fit_a_terminal_of_100_columns(capsys, monkeypatch):
    monkeypatch.setattr(console, "_width", 100)
    made = table(many(), "digits, dirichlet(alpha=0.1), all 10 clients a round, 10 rounds, cnn8, 3 seeds")
    command.show_table(made)
    shown = capsys.readouterr().out.partition("global: the")[0].splitlines()
    assert max(len(line) for line in shown) <= 100
    row = next(line for line in shown if line.startswith("personal03"))
    assert row.count("±") == 3 and "1.00" in row  # no number is folded
    assert any(line.startswith("a model for each client") for line in shown)


def test_the_page_has_headings_and_long_names(tmp_path):
    facts = make_facts(gather([make_run(tmp_path / "run")]), table(many(), "t"))
    text = render_page(facts).partition('<table class="runs">')[0]
    assert text.count("<tr>") == 1 + 45 and text.count('<tr class="block">') == 2
    assert 'colspan="7">a model for each client<' in text and "server_epochs=100" in text


def test_of_many_curves_the_first_and_the_best_are_coloured():
    panels = command.collect_curves(many())
    one, own = panels.values()
    coloured = highlight(one)
    assert len(coloured) == BEST + 1 and coloured[0] == "fedavg" and "global25" in coloured
    assert next(iter(own)) == "personal00" and "personal16" in highlight(own)
    few = dict(list(one.items())[:MOST])
    assert highlight(few) == list(few)


@pytest.mark.parametrize("count", [1, 3, 8, 45])
def test_pictures_of_few_and_of_many(tmp_path, count):
    cells = [cell for cell in many() if cell.method in [each.method for each in many(1)][-count:]]
    panels = command.collect_curves(cells)
    command.plot_panels(panels, tmp_path / "c.png", "t")
    series = {"drift": {cell.method: [[(1, 1.0), (2, 2.0)]] for cell in cells}}
    command.plot_measures(series, list(series["drift"]), tmp_path / "m.png", command.highlight_all(cells))
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in ("c.png", "m.png"))


def test_personal_methods_alone_are_pooled_and_ranked():
    made = table([played("b", PERSONAL, 0.9), played("c", PERSONAL, 0.6)], "t")
    assert made.notes[0].startswith("accuracy: pooled over the clients' own test sets")
    assert not any(note.startswith("personal") for note in made.notes) and made.personal == ()
    assert made.rows[0][1][0].mark == "best"
