"""`unskew tune`: the same budget of settings for every method, chosen on validation data, compared on fresh seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from unskew.base.text import Table, count_of
from unskew.cli import signals
from unskew.cli.cells_on import choose_elsewhere
from unskew.cli.compare import make_title, publish
from unskew.cli.output import note
from unskew.cli.progress import Announcer, DownloadProgress
from unskew.cli.run_flags import add_run_flags
from unskew.cli.shared_flags import CellsOn, DataDir, Jobs, Json, Quiet
from unskew.data.sources import load
from unskew.report.files import TUNED, check_place
from unskew.report.tables import Format
from unskew.report.tuning import render_trials, table
from unskew.runs import building
from unskew.runs.arguments import read_methods, read_seeds, to_run
from unskew.runs.comparison import Metric
from unskew.runs.config import FLAGS
from unskew.runs.field import drop_misfits
from unskew.runs.tuning import tune as tuning
from unskew.runs.tuning.searches import Kind


@add_run_flags(*(flag for flag in FLAGS if flag not in ("method", "seed")))
def tune(
    config: Table,
    methods: Annotated[str, typer.Option(help='methods, as for compare: "fedavg,fedprox,fedsol"')],
    grid: Annotated[
        list[str],
        typer.Option(
            metavar="KEY=VALUES",
            help='values to try, such as "lr=0.01,0.03,0.1" for all methods or "fedprox.mu=0.1,1" for one; may be '
            'given several times; ranges such as "lr=log(0.001,1)" for random, halving and optuna',
        ),
    ],
    budget: Annotated[
        int | None, typer.Option(help="settings of each method, in whole runs; default: all of the largest grid")
    ] = None,
    search: Annotated[
        Kind, typer.Option(help="which settings are tried; optuna needs the extra unskew\\[tune]")
    ] = "grid",
    seeds: Annotated[str, typer.Option(help="seeds of the comparison: a number, or a list such as 1024,2025")] = "3",
    tuning_seeds: Annotated[
        str, typer.Option(help="seeds of each trial: a number (from 1000 on), or a list; none of --seeds")
    ] = "1",
    out: Annotated[
        Path | None,
        typer.Option(help="the folder, whose finished trials and runs are not run again; default: runs/tune-<hash>"),
    ] = None,
    metric: Annotated[Metric, typer.Option(help="which figure of the curves to choose and to compare by")] = "last",
    form: Annotated[Format | None, typer.Option("--format", help="print the table in this form")] = None,
    jobs: Jobs = None,
    cells_on: CellsOn = None,
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Tunes every method with the same budget on validation data, then compares the choices on fresh seeds.

    Example: unskew tune --methods "fedavg,fedprox" --grid "lr=0.01,0.1" --grid "fedprox.mu=0.1,1" --rounds 10
    """
    base = to_run(config)
    elsewhere = choose_elsewhere(jobs, cells_on, [base.execution], quiet)
    wanted, numbers = read_methods(methods), read_seeds(seeds)
    if out is not None:
        check_place(out, tuning=True)
    data = load(base.data, data_dir, DownloadProgress())
    wanted = drop_misfits(wanted, base, numbers[0], data)
    plan = tuning.make_plan(base, wanted, grid, budget, search, tuning_seeds, numbers, metric, data)
    shown = base.resolve(building.prepare_data(base, dataset=data))
    given = out or Path("runs") / f"tune-{shown.hash}"
    check_place(given, tuning=True)
    place = given.absolute()  # a slot may change the current folder
    signals.explain(lambda: f"the trials so far are in {given}; the same command again goes on from there")
    notes = (*wanted.notes, *tuning.explain(plan, data))
    if not quiet:
        for line in notes[len(wanted.notes) :]:
            note(line)
    with Announcer(quiet) as announcer:
        trials, tuned = tuning.tune(plan, data, place, announcer, elsewhere)
        if not quiet:
            fresh = count_of(len(numbers), "fresh seed")
            note(f"{count_of(len(trials), 'trial')} done; now the chosen settings with {fresh}")
        cells = tuning.compare_tuned(plan, tuned, data, place, announcer, elsewhere)
    result = table(tuning.Tuning(trials, tuned, cells, notes), make_title(shown, len(numbers)), metric)
    files = render_run_files(tuned)
    more = {**render_trials(trials, tuned), **files}
    publish(result, cells, shown, data, place, given, "json" if as_json else form, more)
    if not quiet:
        note(f"the chosen settings as run files: {', '.join(str(given / name) for name in files)}")


def render_run_files(tuned: Sequence[tuning.Tuned]) -> dict[str, str]:
    """A file for each method that `unskew run` takes, by name."""
    files: dict[str, str] = {}
    for number, own in enumerate(tuned):
        name = own.run.method.name
        again = sum(other.run.method.name == name for other in tuned[:number])  # with other options
        files[f"{TUNED}/{name}{f'-{again + 1}' if again else ''}.toml"] = own.run.to_toml()
    return files
