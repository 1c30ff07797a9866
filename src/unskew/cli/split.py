"""`unskew split`: a partition as numbers, a file and a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unskew.base.errors import InputError
from unskew.base.text import Table, count_of
from unskew.cli.output import console, make_table, print_json
from unskew.cli.progress import DownloadProgress
from unskew.cli.run_flags import add_run_flags
from unskew.cli.shared_flags import DataDir, Json
from unskew.data.dataset import Dataset
from unskew.data.partition.base import Partition, refuse_other
from unskew.data.partition.skew import SkewSummary, choose_clients, describe, label_counts
from unskew.report.files import draw_whole
from unskew.report.split_plot import Counts, plot_split
from unskew.runs import building
from unskew.runs.arguments import to_run

SHOWN_CLIENTS = 40
SHOWN_CLASSES = 20


@add_run_flags("data", "split", "clients", "seed", "split_seed", "local_test", "validation")
def split(
    config: Table,
    out: Annotated[Path | None, typer.Option(help="save the partition as JSON; use it with --split file:PATH")] = None,
    csv: Annotated[Path | None, typer.Option(help="export client, sample index and label as CSV")] = None,
    picture: Annotated[Path | None, typer.Option(help="draw the partition into this PNG")] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Shows and saves a partition: counts per client and class, how skewed it is, a picture.

    Splits: iid, dirichlet:ALPHA, dirichlet_uncapped:ALPHA, shards:N, domain, natural, file:PATH; for any number of
    clients, computed when needed: ranges (disjoint), virtual:SAMPLES (each draws for itself; they may share samples).
    """
    run = to_run(config)
    data = building.prepare_data(run, data_dir, None, DownloadProgress())
    partition = building.cut(run.resolve(data), data)
    labels = data.train.y.numpy()
    summary = describe(partition, labels, data.num_classes)
    clients = choose_clients(partition)
    counts = label_counts(partition, labels, data.num_classes, clients)
    if picture:  # first, as it is refused for most reasons
        _draw(counts, clients.tolist(), len(partition), data, picture, f"{run.data}, {run.split}")
    if out:
        partition.save(out)
    if csv:
        partition.export_csv(csv, labels)
    if as_json:
        shown = {"counts": counts.tolist()} if len(clients) == len(partition) else {}
        print_json({"hash": partition.hash, **summary.to_dict(), **shown})
        return
    if len(partition) <= SHOWN_CLIENTS and data.num_classes <= SHOWN_CLASSES:
        rows = make_table(
            "client", "samples", *data.classes, title=f"{run.data}, {run.split}: samples per client and class"
        )
        for client, row in enumerate(counts):
            rows.add_row(str(client), str(row.sum()), *(str(n) if n else "·" for n in row))
        console.print(rows)
    _show_summary(summary, partition)
    for path in (out, csv, picture):
        if path:
            console.print(f"wrote {path}", soft_wrap=True)


def _draw(counts: Counts, clients: list[int], of: int, data: Dataset, path: Path, title: str) -> None:
    """The picture, whole or not at all; a file that holds anything else is never replaced."""
    if path.suffix.lower() != ".png":
        raise InputError(f"--picture expects the name of a .png file, got '{path}'")
    names = list(map(str, clients))
    draw_whole(path, lambda part: plot_split(counts, data.classes, part, title, names, of), check=refuse_other)


def _show_summary(summary: SkewSummary, partition: Partition) -> None:
    rows = make_table(
        "over clients",
        "mean",
        "min",
        "10 %",
        "median",
        "90 %",
        "max",
        title=f"\n{count_of(summary.clients, 'client')}, {count_of(summary.samples, 'sample')}, hash {partition.hash}",
    )
    names = {
        "samples": summary.sizes, "classes held": summary.classes, "effective classes": summary.effective_classes,
        "total variation to all": summary.total_variation, "KL to all (bits)": summary.kl,
        "Jensen-Shannon (bits)": summary.jensen_shannon,
    }  # fmt: skip
    for name, spread in names.items():
        values = (spread.mean, spread.min, spread.p10, spread.median, spread.p90, spread.max)
        rows.add_row(name, *(f"{value:.3g}" if value < 1000 else f"{value:.0f}" for value in values))
    console.print(rows)
    console.print(f"Gini coefficient of the sizes: {summary.size_gini:.3f}")
    if summary.described < summary.clients:
        console.print(f"figures over {summary.described} clients, a fixed random choice")
    if partition.shared:
        console.print("clients draw samples for themselves: a sample may belong to several")
