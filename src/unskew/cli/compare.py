"""`unskew compare`: runs every method under every seed, prints the table, leaves pictures."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from unskew.base.errors import InputError
from unskew.base.text import Table, count_of
from unskew.cli import signals
from unskew.cli.cells_on import choose_elsewhere
from unskew.cli.output import console, make_table, note, print_result
from unskew.cli.progress import Announcer, DownloadProgress
from unskew.cli.run_flags import add_run_flags
from unskew.cli.shared_flags import CellsOn, DataDir, Jobs, Json, Quiet
from unskew.data.dataset import Dataset
from unskew.data.partition.skew import choose_clients, label_counts
from unskew.data.sources import load
from unskew.measures.classification import NAMES
from unskew.report.comparison import read_columns
from unskew.report.comparison import table as comparison_table
from unskew.report.curves import Curves, collect_panels, highlight, plot_measures, plot_panels
from unskew.report.files import check_place, put_in_place, writing_place
from unskew.report.page import write_page
from unskew.report.split_plot import plot_split
from unskew.report.tables import Format, render
from unskew.report.tables import Table as Compared
from unskew.runs import building
from unskew.runs.arguments import read_methods, read_seeds, to_run
from unskew.runs.comparison import CellResult, Metric
from unskew.runs.comparison import compare as run_all
from unskew.runs.config import FLAGS, Run, cohort_size
from unskew.runs.field import drop_misfits

SUFFIX: dict[Format, str] = {"json": "json", "md": "md", "csv": "csv", "latex": "tex"}


@add_run_flags(*(flag for flag in FLAGS if flag not in ("method", "seed")))
def compare(
    config: Table,
    methods: Annotated[
        str,
        typer.Option(
            help='methods with their options: "fedavg,fedprox(mu=0.1),scaffold"; all, all-global or all-personal: '
            "every one at its defaults"
        ),
    ],
    seeds: Annotated[str, typer.Option(help="how many seeds (3 means 0, 1, 2), or a list such as 1024,2025")] = "3",
    out: Annotated[
        Path | None,
        typer.Option(
            help="the comparison's folder, whose finished runs are not run again; default: runs/compare-<hash>"
        ),
    ] = None,
    metric: Annotated[Metric, typer.Option(help="which figure of the accuracy curve to compare")] = "last",
    columns: Annotated[
        str, typer.Option(help=f"more columns, of the last test: {', '.join(NAMES)}; several with commas, or all")
    ] = "",
    form: Annotated[Format | None, typer.Option("--format", help="print the table in this form")] = None,
    jobs: Jobs = None,
    cells_on: CellsOn = None,
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compares methods on the same split, clients, batches and initial weights, over several seeds."""
    base = to_run(config)
    elsewhere = choose_elsewhere(jobs, cells_on, [base.execution], quiet)
    wanted = read_methods(methods)
    numbers, more = read_seeds(seeds), read_columns(columns)
    if out is not None:
        check_place(out)
    data = load(base.data, data_dir, DownloadProgress())
    prepared = building.prepare_data(base, data_dir, data)
    if metric == "best_on_validation" and prepared.validation is None:
        raise InputError("--metric best_on_validation needs validation samples; add --validation 0.1 or so")
    wanted = drop_misfits(wanted, base, numbers[0], data)
    shown = base.resolve(prepared)
    given = out or Path("runs") / f"compare-{shown.hash}"
    out = given.absolute()  # a slot may change the current folder
    signals.explain(lambda: f"the runs so far are in {given}; the same command again goes on from there")
    with Announcer(quiet) as announcer:
        # not as it was resolved: that is for FedAvg, and another method may not be stackable
        cells = run_all(
            base, wanted, numbers, out, data_dir=data_dir, dataset=data, announce=announcer, elsewhere=elsewhere
        )
    reused = sum(cell.reused for cell in cells)
    if reused and not quiet:
        note(f"{reused} of {len(cells)} runs were finished already and were not run again")
    result = comparison_table(cells, make_title(shown, len(numbers)), metric, wanted.notes, more)
    publish(result, cells, shown, data, out, given, "json" if as_json else form)


def publish(
    result: Compared,
    cells: Sequence[CellResult],
    shown: Run,
    data: Dataset,
    out: Path,
    given: Path,
    form: Format | None,
    more: Mapping[str, str] | None = None,
) -> None:
    """Writes a comparison's files into its folder and prints its table; `more`: other files, by name.

    `given`: the folder as the user named it, for messages.
    """
    with writing_place(out) as made:
        for kind, suffix in SUFFIX.items():
            (made / f"table.{suffix}").write_text(render(result, kind), encoding="utf-8")
        for name, text in (more or {}).items():
            (made / name).parent.mkdir(exist_ok=True)
            (made / name).write_text(text, encoding="utf-8")
        draw_pictures(shown, cells, result, cells[0].seed, data, made)
        measured = draw_measures(cells, made / "measures.png", highlight_all(cells))
        write_page(result, cells, made / "report.html", shlex.join(["unskew", *sys.argv[1:]]))
        kept = put_in_place(made, out)
    if kept is not None:
        place = given / kept.relative_to(out)
        what = "table, report and pictures" if (kept / "table.json").exists() else "edited run files"
        note(f"{what} of the earlier comparison in {given} are now in {place}")
    if form is not None:
        print_result(render(result, form))
        return
    show_table(result)
    written = ["report.html", "table.md (and .csv, .tex, .json)", "curves.png", "split.png"]
    written += ["measures.png"] * measured + [name for name in more or {} if name.endswith(".md")]
    console.print(f"\nin {given}: {', '.join(written)}", soft_wrap=True)


def make_title(run: Run, seeds: int) -> str:
    """What was compared, in a line."""
    assert run.clients is not None
    cohort = cohort_size(run.sample, run.clients)
    each = "all" if cohort == run.clients else f"{cohort} of"
    return (
        f"{run.data}, {run.split}, {each} {count_of(run.clients, 'client')} a round, {count_of(run.rounds, 'round')}, "
        f"{run.model}, {count_of(seeds, 'seed')}"
    )


def draw_pictures(
    run: Run,
    cells: Sequence[CellResult],
    result: Compared,
    seed: int,
    data: Dataset,
    out: Path,
) -> None:
    """Draws the accuracy curves, global and personal ones apart, and the first seed's partition."""
    panels = {heading: _tag(curves, result) for heading, curves in collect_curves(cells).items()}
    plot_panels(panels, out / "curves.png", make_title(run, len({cell.seed for cell in cells})))
    first = replace(run, seed=seed)
    data = building.prepare_data(first, dataset=data)
    partition = building.cut(first, data)
    clients = choose_clients(partition)
    counts = label_counts(partition, data.train.y.numpy(), data.num_classes, clients)
    named = len(data.group_names) == len(partition)
    names = [data.group_names[client] if named else str(client) for client in clients.tolist()]
    title = f"{run.data}, {run.split}, seed {seed}"
    plot_split(counts, data.classes, out / "split.png", title, names, len(partition))


def collect_curves(cells: Sequence[CellResult]) -> dict[str, Curves]:
    """The accuracy curves of each kind; one panel without a heading where there is only one kind."""
    return collect_panels([(cell.method, cell.output, cell.rounds) for cell in cells])


def highlight_all(cells: Sequence[CellResult]) -> list[str]:
    """The methods that have a colour in any panel."""
    return [name for curves in collect_curves(cells).values() for name in highlight(curves)]


def _tag(curves: Curves, result: Compared) -> Curves:
    return {name + result.tag(name, personal=False): own for name, own in curves.items()}


def draw_measures(cells: Sequence[CellResult], path: Path, coloured: Sequence[str] = ()) -> bool:
    """Draws the measured figures over rounds; False, and no picture, where none has two rounds."""
    series: dict[str, dict[str, list[list[tuple[int, float]]]]] = {}
    for cell in cells:
        found: dict[str, list[tuple[int, float]]] = {}
        for row in cell.rounds:
            for name, value in row.get("measures", {}).items():
                if isinstance(value, (int, float)):
                    found.setdefault(name, []).append((row["round"], value))
        for name, curve in found.items():
            if len(curve) > 1:
                series.setdefault(name, {}).setdefault(cell.method, []).append(curve)
    if series:
        plot_measures(series, list(dict.fromkeys(cell.method for cell in cells)), path, coloured)
    return bool(series)


def show_table(result: Compared) -> None:
    """Prints the table: best bold, second best underlined."""
    shown = make_table("method", *result.columns, title=result.title)
    for column in shown.columns[1:]:
        column.no_wrap = True  # a narrow terminal folds names, not numbers
    looks = {"best": "bold green", "second": "underline", "": ""}
    for heading, rows in result.blocks():
        if heading:
            shown.add_row(Text(heading, style="dim italic"))
        for name, cells in rows:
            text = name + result.tag(name, personal=False)
            shown.add_row(text, *(Text(cell.text, style=looks[cell.mark]) for cell in cells))
    console.print(shown)
    for line in result.legend if console.is_terminal and not console.is_dumb_terminal else result.notes:
        console.print(line, style="dim", soft_wrap=True)
