"""`unskew compare`: runs every method under every seed, prints the table, leaves pictures."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from unskew.base import storage
from unskew.base.errors import InputError
from unskew.base.text import Table, split_list
from unskew.cli.output import console, make_table, note
from unskew.cli.progress import DownloadProgress, RoundProgress
from unskew.cli.run_flags import add_run_flags, to_run
from unskew.cli.shared_flags import DataDir, Json, Quiet
from unskew.core.method import methods as registry
from unskew.data.dataset import Dataset
from unskew.data.partition.skew import choose_clients, label_counts
from unskew.data.sources import load
from unskew.report.comparison import table as comparison_table
from unskew.report.curves import plot_curves, plot_measures
from unskew.report.page import write_page
from unskew.report.split_plot import plot_split
from unskew.report.tables import Format, render
from unskew.report.tables import Table as Compared
from unskew.runs import building, engine
from unskew.runs.comparison import CellResult, Metric
from unskew.runs.comparison import compare as run_all
from unskew.runs.config import FLAGS, Run, cohort_size
from unskew.runs.folder import Row

SUFFIX: dict[Format, str] = {"json": "json", "md": "md", "csv": "csv", "latex": "tex"}
WRITTEN = (*(f"table.{suffix}" for suffix in SUFFIX.values()), "curves.png", "split.png", "measures.png", "report.html")
"""What a comparison writes beside its runs; table.json comes first and says whose the others are."""


@add_run_flags(*(flag for flag in FLAGS if flag not in ("method", "seed")))
def compare(
    config: Table,
    methods: Annotated[str, typer.Option(help='methods with their options: "fedavg,fedprox(mu=0.1),scaffold"')],
    seeds: Annotated[str, typer.Option(help="how many seeds (3 means 0, 1, 2), or a list such as 1024,2025")] = "3",
    out: Annotated[
        Path | None,
        typer.Option(
            help="the comparison's folder, whose finished runs are not run again; default: runs/compare-<hash>"
        ),
    ] = None,
    metric: Annotated[Metric, typer.Option(help="which figure of the accuracy curve to compare")] = "last",
    form: Annotated[Format | None, typer.Option("--format", help="print the table in this form")] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compares methods on the same split, clients, batches and initial weights, over several seeds."""
    base = to_run(config)
    wanted = [registry.build(text) for text in split_list(methods)]
    if not wanted:
        raise InputError('--methods names no method; give some, such as "fedavg,fedprox(mu=0.1)"')
    numbers = read_seeds(seeds)
    if out is not None:
        check_place(out)
    data = load(base.data, data_dir, DownloadProgress())
    prepared = building.prepare_data(base, data_dir, data)
    if metric == "best_on_validation" and prepared.validation is None:
        raise InputError("--metric best_on_validation needs validation samples; add --validation 0.1 or so")
    shown = base.resolve(prepared)
    out = out or Path("runs") / f"compare-{shown.hash}"
    with _Announcer(quiet) as announcer:
        # not as it was resolved: that is for FedAvg, and another method may not be stackable
        cells = run_all(base, wanted, numbers, out, data_dir=data_dir, dataset=data, announce=announcer)
    reused = sum(cell.reused for cell in cells)
    if reused and not quiet:
        note(f"{reused} of {len(cells)} runs were finished already and were not run again")
    result = comparison_table(cells, make_title(shown, len(numbers)), metric)
    earlier = out / "table.json"
    if not quiet and earlier.exists() and earlier.read_text(encoding="utf-8") != render(result, "json"):
        note(f"the earlier table and pictures in {out} are replaced; all its runs are kept")
    for kind, suffix in SUFFIX.items():
        storage.write_atomic(out / f"table.{suffix}", render(result, kind).encode(), sync=False)
    draw_pictures(shown, cells, result, numbers[0], data, data_dir, out)
    pictures = [("Accuracy over rounds", out / "curves.png"), ("Who holds what", out / "split.png")]
    measured = draw_measures(cells, out / "measures.png")
    if measured:
        pictures.append(("Measures over rounds", out / "measures.png"))
    write_page(result, pictures, (cells[0].folder / "run.toml").read_text(encoding="utf-8"), out / "report.html")
    chosen = "json" if as_json else form
    if chosen is not None:
        sys.stdout.write(render(result, chosen))
        return
    show_table(result)
    written = "report.html, table.md (and .csv, .tex, .json), curves.png, split.png" + ", measures.png" * measured
    console.print(f"\nin {out}: {written}", soft_wrap=True)


def check_place(out: Path) -> None:
    """Refuses a folder in which other files have the names that the comparison would write."""
    existing = [name for name in WRITTEN if (out / name).exists()]
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; choose another --out, a folder")
    if existing and not _is_table(out / "table.json"):
        raise InputError(f"{out / existing[0]} already exists and belongs to no comparison; choose another --out")


def _is_table(path: Path) -> bool:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and {"title", "rows", "notes"} <= found.keys()


class _Announcer:
    """Gives each cell a progress bar of its own."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self._shown: RoundProgress | None = None

    def __enter__(self) -> _Announcer:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown is not None:
            self._shown.__exit__(None, None, None)

    def __call__(self, run: Run, number: int, total: int) -> engine.Watch:
        title = f"[{number}/{total}] {run.method}, seed {run.seed}"

        def watch(row: Row) -> None:
            if self._shown is None or self._shown.title != title:
                self._shown = RoundProgress(title, run.rounds, self.quiet).__enter__()
            self._shown(row)
            if row["round"] == run.rounds:
                self._shown.__exit__(None, None, None)

        return watch


def read_seeds(text: str) -> list[int]:
    """Reads a list of seeds: `3` means seeds 0, 1, 2; `1024,2025` means those; `7,` means seed 7 alone."""
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise InputError(f"--seeds expects a number such as 3 or a list such as 1024,2025, got '{text}'") from None
    if "," not in text:
        if not numbers or numbers[0] < 1:
            raise InputError(f"--seeds expects at least 1 seed, got '{text}'")
        return list(range(numbers[0]))
    if not numbers or len(set(numbers)) < len(numbers) or min(numbers) < 0:
        raise InputError(f"--seeds expects different numbers from 0 up, got '{text}'")
    return numbers


def make_title(run: Run, seeds: int) -> str:
    """What was compared, in a line."""
    assert run.clients is not None
    cohort = cohort_size(run.sample, run.clients)
    each = "all" if cohort == run.clients else f"{cohort} of"
    return (
        f"{run.data}, {run.split}, {each} {run.clients} clients a round, {_count(run.rounds, 'round')}, "
        f"{run.model}, {_count(seeds, 'seed')}"
    )


def _count(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def draw_pictures(
    run: Run,
    cells: Sequence[CellResult],
    result: Compared,
    seed: int,
    data: Dataset,
    data_dir: Path | None,
    out: Path,
) -> None:
    """Draws the accuracy curves, personal methods marked as in the table, and the first seed's partition."""
    curves: dict[str, list[list[tuple[int, float]]]] = {}
    for cell in cells:
        curve = [(row["round"], _accuracy(row)) for row in cell.rounds]
        label = cell.method + result.tag(cell.method)
        curves.setdefault(label, []).append([(number, value) for number, value in curve if value is not None])
    plot_curves(curves, out / "curves.png", make_title(run, len({cell.seed for cell in cells})))
    first = replace(run, seed=seed)
    data = building.prepare_data(first, data_dir, data)
    partition = building.cut(first, data)
    clients = choose_clients(partition)
    counts = label_counts(partition, data.train.y.numpy(), data.num_classes, clients)
    named = len(data.group_names) == len(partition)
    names = [data.group_names[client] if named else str(client) for client in clients.tolist()]
    title = f"{run.data}, {run.split}, seed {seed}"
    plot_split(counts, data.classes, out / "split.png", title, names, len(partition))


def draw_measures(cells: Sequence[CellResult], path: Path) -> bool:
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
        plot_measures(series, list(dict.fromkeys(cell.method for cell in cells)), path)
    else:
        path.unlink(missing_ok=True)  # an earlier comparison's
    return bool(series)


def _accuracy(row: Row) -> float | None:
    found: float | None = row.get("accuracy", row.get("personal", {}).get("pooled"))
    return found


def show_table(result: Compared) -> None:
    """Prints the table: best bold, second best underlined."""
    shown = make_table("method", *result.columns, title=result.title)
    for name, cells in result.rows:
        looks = {"best": "bold green", "second": "underline", "": ""}
        shown.add_row(name + result.tag(name), *(Text(cell.text, style=looks[cell.mark]) for cell in cells))
    console.print(shown)
    for line in result.notes:
        console.print(line, style="dim", soft_wrap=True)
