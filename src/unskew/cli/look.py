"""`unskew list`, `unskew show`, `unskew plot`: what runs came to, without running anything."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from unskew.base.display import X
from unskew.base.errors import InputError
from unskew.base.text import count_of
from unskew.cli.output import console, make_table, note, print_json, show_result
from unskew.cli.outputs import check_out
from unskew.cli.shared_flags import Json
from unskew.report.confusion_plot import plot_confusion
from unskew.report.figures import Played, draw_runs, read_width
from unskew.report.files import draw_whole
from unskew.report.layout import save
from unskew.report.reading import name_runs
from unskew.runs.config import read_file
from unskew.runs.folder import Row
from unskew.runs.saved import SavedRun, find_runs

KINDS = (".png", ".pdf", ".svg")
MOST_CLASSES = 20
"""`show` lists no more than these."""


def list_runs(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="where to look, folders inside it too")] = Path(
        "runs"
    ),
    as_json: Json = False,
) -> None:
    """Lists the runs in a folder, the newest last: what was run, how far it came, how good it is."""
    rows = [_describe(run) for run in find_runs(folder)]
    if as_json:
        print_json(rows)
        return
    table = make_table("run", "method", "data", "split", "seed", "rounds", "accuracy", "state", "changed")
    for column in table.columns[4:]:
        column.no_wrap = True
    for row in rows:
        accuracy = "" if row["accuracy"] is None else f"{100 * row['accuracy']:.2f} %"
        changed = datetime.fromtimestamp(row["changed"]).strftime("%Y-%m-%d %H:%M")
        shown = (row["run"], row["method"], row["data"], row["split"], row["seed"], f"{row['done']}/{row['rounds']}")
        table.add_row(*map(str, shown), accuracy, row["state"], changed)
    console.print(table)
    console.print(f"{count_of(len(rows), 'run')}; accuracy after the last round tested", style="dim")


def _describe(run: SavedRun) -> Row:
    """What a line of the list says; a run that cannot be read says so in its own line."""
    about: Row = {"run": str(run.path), **dict.fromkeys(("method", "data", "split", "seed", "rounds"), "?"), "done": 0,
                  "accuracy": None, "state": "unfinished", "changed": run.changed}  # fmt: skip
    try:
        about |= run.about
        about["done"] = max(len(run.rounds) - 1, 0)
        about["accuracy"] = run.curve[-1][1] if run.curve else None
        if run.finished:
            about["state"] = "diverged" if run.summary["diverged"] else "finished"
    except InputError as error:
        about["state"] = "damaged"
        note(f"{run.path}: {error}")
    return about


def show(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="the run's folder")],
    as_json: Json = False,
) -> None:
    """Shows a run: its options and figures, or how far it came."""
    run = SavedRun(path)
    if run.finished:
        summary = run.summary  # first: it is refused where files were edited
        if not as_json:
            _show_options(run)
        show_result(summary, path, as_json)
        if not as_json and summary.get("figures"):
            _show_classes(run)
        return
    if as_json:
        print_json({**run.about, "finished": False, "rows": run.rounds})
        return
    _show_options(run)
    table = make_table("round", "accuracy", "train loss", title="\nthe last rounds")
    for row in run.rounds[-5:]:
        value, loss = run.read_accuracy(row), row.get("train_loss")
        table.add_row(
            str(row["round"]), "" if value is None else f"{100 * value:.2f} %", "" if loss is None else f"{loss:.4f}"
        )
    console.print(table)
    console.print(f"not finished; 'unskew resume {path}' continues it", soft_wrap=True)


def _show_classes(run: SavedRun) -> None:
    """The last test by classes, where they fit a screen."""
    confusion = run.confusion()
    if len(confusion.classes) > MOST_CLASSES:
        console.print(f"its {len(confusion.classes)} classes one by one: {run.path / 'per_class.csv'}", soft_wrap=True)
        return
    table = make_table("class", "precision", "recall", "F1", "samples", title="\nthe last test by classes")
    for row in confusion.per_class:
        shares = ("" if value is None else f"{100 * value:.2f} %" for value in (row.precision, row.recall, row.f1))
        table.add_row(row.name, *shares, str(row.support))
    console.print(table)


def _show_options(run: SavedRun) -> None:
    table = make_table("option", "value", title=f"{run.path}")
    for name, value in run.about.items():
        table.add_row(name, str(value))
    for each in run.extended:
        differs = "" if each["same"] else f"; not as in a run of {run.about['rounds']} from the start"
        table.add_row("extended", f"from {each['rounds']} rounds, after round {each['after']}{differs}")
    console.print(table)


def plot(
    paths: Annotated[list[Path], typer.Argument(metavar="RUN…", help="folders of runs, or folders that hold some")],
    out: Annotated[Path, typer.Option("--out", "-o", help="the picture: .png, .pdf or .svg")] = Path("curves.png"),
    title: Annotated[str, typer.Option(help="the line above it")] = "",
    width: Annotated[
        str,
        typer.Option(help="for a paper, without a title of its own: column (8.4 cm), full (17.4 cm) or centimetres"),
    ] = "",
    measure: Annotated[str, typer.Option(help="a recorded measure instead of accuracy, such as drift")] = "",
    x: Annotated[X, typer.Option("--x", help="what it is drawn over: bytes and seconds add up over rounds")] = "rounds",
    confusion: Annotated[
        bool, typer.Option("--confusion", help="one run's confusion matrix after the last round instead")
    ] = False,
) -> None:
    """Draws the accuracy of runs over rounds into one picture; runs that differ in their seeds alone are one line."""
    if out.suffix.lower() not in KINDS:
        raise InputError(f"--out expects the name of a {', '.join(KINDS)} file, got '{out}'")
    check_out(out)
    if confusion:
        if measure or width or x != "rounds":
            raise InputError("--confusion goes without --measure, --width and --x; leave them out")
        _draw_confusion(paths, out, title)
        return
    if width:
        read_width(width)  # before anything takes time
    runs = [run for path in paths for run in find_runs(path)]
    names = name_runs([(run.path, run.about["method"], read_file(run.path / "run.toml")) for run in runs])
    played = [Played(name, run.output, run.rounds) for name, run in zip(names, runs, strict=True)]
    if not any(run.curve for run in runs):
        raise InputError(f"nothing to draw: no round of {', '.join(map(str, paths))} was tested yet")
    above = title or ("" if width else _make_title([run.about for run in runs]))
    figure = draw_runs(played, measure=measure or None, x=x, width=width or None, title=above)
    draw_whole(out, lambda part: save(figure, part))
    console.print(f"wrote {out}: {count_of(len(runs), 'run')}", soft_wrap=True)
    if width and len({run.method for run in played}) < len(played):
        console.print("for the caption: lines are means over seeds, bands ± 1 standard deviation", style="dim")


def _draw_confusion(paths: Sequence[Path], out: Path, title: str) -> None:
    if len(paths) > 1:
        raise InputError(f"--confusion draws one run, got {len(paths)}; name one")
    run = SavedRun(paths[0])
    found, about = run.confusion(), run.about
    above = title or f"{about['method']}, {_make_title([about])}"
    draw_whole(out, lambda part: plot_confusion(found, part, above))
    console.print(f"wrote {out}: {count_of(int(found.counts.sum()), 'test sample')}", soft_wrap=True)


def _make_title(runs: Sequence[Row]) -> str:
    """What all of them have in common."""
    first = runs[0]
    return ", ".join(
        str(first[key]) for key in ("data", "split", "model") if all(run[key] == first[key] for run in runs)
    )
