"""`unskew reproduce`: the papers' tables and figures, run in their protocols beside the printed figures."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from unskew.base.errors import InputError
from unskew.base.text import count_of
from unskew.cli import signals
from unskew.cli.cells_on import choose_elsewhere
from unskew.cli.output import console, errors, make_table, note, print_json
from unskew.cli.progress import Announcer
from unskew.cli.shared_flags import CellsOn, DataDir, Jobs, Json, Quiet
from unskew.recipes import PAPERS, find, list_tables
from unskew.recipes.base import Figure, Finished, Scale
from unskew.recipes.estimate import Estimate, Trial, estimate, key_of, try_out
from unskew.recipes.queue import join_plans, list_places, plan_all, read_queue, work
from unskew.recipes.reproduce import (
    Compared,
    Data,
    Identity,
    Plan,
    check_anything_runs,
    compare_figures,
    make_plan,
    place,
    play,
    read_back,
)  # fmt: skip
from unskew.recipes.scales import describe
from unskew.report import reproduction
from unskew.runs.cells_here import count_jobs, read_jobs
from unskew.runs.comparison import Place
from unskew.runs.config import Run
from unskew.runs.folder import RunFolder

log = logging.getLogger(__name__)

Name = Annotated[str | None, typer.Argument(help="a table or figure, such as fedas/t3 or fedsol/fig3; none: the list")]


def reproduce(
    name: Name = None,
    listed: Annotated[bool, typer.Option("--list", help="list every table and figure of the papers")] = False,
    rows: Annotated[str | None, typer.Option(help="only these rows, such as fedper,fedas")] = None,
    columns: Annotated[
        str | None, typer.Option(help='only these columns, such as "P=0.2"; several conditions hold together')
    ] = None,
    chosen_scale: Annotated[
        Scale | None,
        typer.Option(
            "--scale",
            help="full: the paper's protocol (default); cpu: a stated reduction of tens of minutes; smoke: seconds",
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="how many of the paper's seeds; default: as many as it ran")
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="print the runs, their hours (by a trial of some steps) and bytes; run nothing"),
    ] = False,
    queue: Annotated[
        Path | None,
        typer.Option(help="work through a file of lines such as: fedas/t3 --rows fedas --seeds 1, at low priority"),
    ] = None,
    out: Annotated[Path, typer.Option(help="where runs and tables go; finished runs are not run again")] = Path(
        "reproductions"
    ),
    jobs: Jobs = None,
    cells_on: CellsOn = None,
    data_dir: DataDir = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Reproduces the papers' tables and figures: runs their cells and prints ours beside the printed figures."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; choose another --out, a folder")
    data = Data(data_dir)
    scale: Scale = chosen_scale or "full"
    if queue is not None:
        if name is not None or rows or columns or chosen_scale or seeds or as_json:
            raise InputError(
                "--queue takes tables, rows, columns, scale and seeds from its file, and prints no JSON; leave them "
                "out of the command"
            )
        if dry_run:
            for plan in plan_all(read_queue(queue), data):
                show_plan(plan, as_json, quiet)
            return
        work_through(queue, jobs, cells_on, out, data, quiet)
        return
    if listed or name is None:
        show_list(as_json)
        return
    found = find(name)
    if isinstance(found, Figure):
        _refuse_options_of_tables({"--rows": rows, "--columns": columns, "--seeds": seeds, "--dry-run": dry_run,
                                   "--json": as_json, "--jobs": jobs, "--cells-on": cells_on}, found)  # fmt: skip
        make_figure(found, scale, out, data, quiet)
        return
    plan = make_plan(found, scale, rows, columns, seeds, data)
    if dry_run:
        show_plan(plan, as_json, quiet)
        return
    check_anything_runs(plan)
    elsewhere = choose_elsewhere(jobs, cells_on, [run.execution for run in plan.runs], quiet)
    signals.explain(lambda: f"the runs so far are in {out}; the same command again goes on from there")
    with Announcer(quiet, tell_data=True) as announcer:
        finished = play(plan.runs, out / scale, data, announcer, elsewhere)
    figures, names, folder = write_table(plan, finished, out)
    if as_json:
        print_json(reproduction.to_record(plan, figures))
        return
    show_figures(plan, figures)
    console.print(f"\nin {folder}: {', '.join(names)}; the runs are in {out / scale / 'runs'}", soft_wrap=True)


def _refuse_options_of_tables(given: Mapping[str, object], figure: Figure) -> None:
    """Options that a figure does not have must not be passed over: a dry run would train."""
    for option, value in given.items():
        if value:
            raise InputError(f"{option} is for tables, and {figure.id} is a figure; leave it out")


def write_table(plan: Plan, finished: Mapping[Identity, Finished], out: Path) -> tuple[list[Compared], list[str], Path]:
    """The figures, and the files that were written, in their folder."""
    figures = compare_figures(plan, finished)
    folder = out / plan.scale / plan.table.id.replace("/", "-")
    return figures, reproduction.write(plan, figures, finished, folder), folder


def show_figures(plan: Plan, figures: Sequence[Compared]) -> None:
    """Prints ours beside the printed figures."""
    heading, *more = reproduction.make_heading(plan)
    shown = make_table("row", "column", "printed", "ours", "difference", "", title=heading)
    for figure in figures:
        shown.add_row(*reproduction.to_row(figure).values())
    console.print(shown)
    for line in (*more, reproduction.LEGEND):
        console.print(line, style="dim", soft_wrap=True)


def show_list(as_json: bool) -> None:
    """Prints every table and figure."""
    tables = list_tables()
    if as_json:
        print_json(
            [{"name": table.id, "title": table.title, "figures": len(table.printed)} for table in tables]
            + [{"name": own.id, "title": own.title} for paper in PAPERS.values() for own in paper.figures.values()]
        )
        return
    for paper in PAPERS.values():
        shown = make_table("name", "figures", "what it is", title=paper.title)
        for table in tables:
            if table.paper is paper:
                shown.add_row(table.id, str(len(table.printed)), table.title)
        for figure in paper.figures.values():
            shown.add_row(figure.id, "", figure.title)
        console.print(shown)
        console.print(f"scale cpu: {paper.cpu_text}\n", style="dim", soft_wrap=True)
    console.print(
        f"{len(tables)} tables; run one: unskew reproduce fedas/t3 --rows fedper,fedas --columns P=0.2 --seeds 1 "
        "(add --dry-run to see what it takes)", soft_wrap=True,
    )  # fmt: skip


def show_plan(plan: Plan, as_json: bool, quiet: bool) -> None:
    """Prints the runs of a plan with estimated hours and bytes."""
    tried: dict[str, Trial] = {}
    estimates: list[tuple[Run, Estimate]] = []
    for number, run in enumerate(plan.runs, 1):
        if key_of(run) not in tried:
            if not quiet:
                note(f"[{number}/{len(plan.runs)}] trying {run.method} with {run.model}")
            tried[key_of(run)] = try_out(run)
        estimates.append((run, estimate(run, tried[key_of(run)])))
    missing = sorted({job.missing for job in plan.jobs if job.missing})
    lost = len({id(job.printed) for job in plan.jobs if job.missing})
    hours, sent = sum(each.hours for _, each in estimates), sum(each.gigabytes for _, each in estimates)
    if as_json:
        print_json({
            "table": plan.table.id, "scale": plan.scale, "figures": len(plan.figures), "hours": hours,
            "gigabytes": sent,
            "missing": missing, "figures_without_data": lost,
            "runs": [{"method": str(run.method), "data": str(run.data), "split": str(run.split), "seed": run.seed,
                      "rounds": run.rounds, "hours": each.hours, "gigabytes": each.gigabytes}
                     for run, each in estimates],
        })  # fmt: skip
        return
    shown = make_table("method", "data", "split", "seed", "rounds", "hours", "GB", title=plan.table.id)
    for run, each in estimates:
        shown.add_row(
            str(run.method), str(run.data), str(run.split), str(run.seed), str(run.rounds), f"{each.hours:.2f}",
            f"{each.gigabytes:.2f}",
        )  # fmt: skip
    console.print(shown)
    console.print(
        f"{count_of(len(plan.figures), 'figure')}, {count_of(len(estimates), 'run')}: about {hours:.1f} hours on one "
        f"core, {sent:.1f} GB between server and clients (simulated: through no network)", soft_wrap=True,
    )  # fmt: skip
    console.print(f"scale {plan.scale}: {describe(plan.table.paper, plan.scale)}", style="dim", soft_wrap=True)
    for line in (*plan.notes, *missing):
        console.print(line, style="dim", soft_wrap=True)
    if lost:
        console.print(f"{count_of(lost, 'figure')} cannot be had here for lack of data", soft_wrap=True)


def make_figure(figure: Figure, scale: Scale, out: Path, data: Data, quiet: bool) -> None:
    """Runs what a figure shows, writes picture and data."""
    notes: list[str] = []
    signals.explain(lambda: f"the runs so far are in {out}; the same command again goes on from there")
    with Announcer(quiet, tell_data=True) as announcer:

        def run(wanted: Run) -> Finished:
            small, missing, said = place(figure.paper, replace(wanted, seed=figure.paper.seeds[0]), scale, data)
            if missing:
                raise InputError(f"{figure.id}: {missing}; get the data, or try --scale smoke")
            if said:
                notes.append(said)
            return next(iter(play([small], out / scale, data, announcer).values()))

        drawn = figure.sketch(run)
    folder = out / scale / figure.id.replace("/", "-")
    folder.mkdir(parents=True, exist_ok=True)
    reproduction.draw(drawn, f"{figure.id}: {figure.title} (scale {scale})", folder / "figure.png")
    (folder / "data.csv").write_text(reproduction.figure_to_csv(drawn), encoding="utf-8")
    console.print(f"{figure.id}: {figure.title}. {drawn.note}", soft_wrap=True)
    for line in (f"scale {scale}: {describe(figure.paper, scale)}", *dict.fromkeys(notes)):
        console.print(line, style="dim", soft_wrap=True)
    for name in [name for name, points in drawn.lines.items() if not points]:
        log.warning("%s: nothing to draw for '%s': its runs have no such figure", figure.id, name)
    console.print(f"in {folder}: figure.png, data.csv", soft_wrap=True)


def count_finished(places: Sequence[Place]) -> int:
    """How many of these runs are finished."""
    return sum(RunFolder(place.path).finished for place in places)


def work_through(queue: Path, jobs: int | None, cells_on: str | None, out: Path, data: Data, quiet: bool) -> None:
    """Works through a queue, side by side here or on a cluster; at its end, or where it stopped, writes tables."""
    plans = plan_all(read_queue(queue), data)
    places = list_places(plans, out, data)
    executions = [place.run.execution for place in places]
    elsewhere = choose_elsewhere(jobs, cells_on, executions, quiet) if cells_on else None
    number = count_jobs(read_jobs(jobs), executions)
    signals.explain(lambda: f"the runs so far are in {out}; the same command again goes on from there")

    def tell(*_: object) -> None:
        if not quiet:
            note(f"queue {queue}: {count_finished(places)} of {len(places)} runs are finished")

    tell()
    try:
        with Announcer(quiet, tell_data=True) as announcer:
            # a file of lines, for days: there one line for each run is enough
            announce = announcer if errors.is_terminal else None
            if elsewhere is not None:
                elsewhere(places, announce)
            else:
                work(places, number, announce, tell)
    finally:
        for plan in join_plans(plans):
            figures, _, folder = write_table(plan, read_back(plan.runs, out / plan.scale, data), out)
            left = sum(figure.mark == "not run" for figure in figures)
            figures_here = f"{len(figures) - left} of {len(figures)} figures"
            console.print(f"{plan.table.id}: {figures_here}, in {folder}", soft_wrap=True)
