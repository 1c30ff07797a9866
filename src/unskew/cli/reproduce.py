"""`unskew reproduce`: the papers' tables and figures, run in their protocols beside the printed figures."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from unskew.base.errors import InputError, is_from_signal, one_line
from unskew.base.text import count_of
from unskew.cli import signals
from unskew.cli.cells_on import choose_elsewhere
from unskew.cli.output import console, errors, make_table, note, print_json
from unskew.cli.progress import Announcer
from unskew.cli.shared_flags import CellsOn, DataDir, Jobs, Json, Quiet
from unskew.recipes import PAPERS, find, list_tables
from unskew.recipes.base import Drawn, Figure, Finished, Scale
from unskew.recipes.estimate import Estimate, Trial, count_held, estimate, key_of, try_out
from unskew.recipes.queue import join_plans, list_places, plan_all, read_queue, refuse_options_of_tables, work
from unskew.recipes.reproduce import (
    Compared,
    Data,
    FigurePlan,
    Identity,
    Plan,
    check_anything_runs,
    compare_figures,
    make_plan,
    plan_figure,
    play,
    read_back,
    sketch,
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
    rows: Annotated[
        str | None,
        typer.Option(
            help='only these rows, such as fedper,fedas; names with commas by semicolons: "PA=1, CS=1; PA=0, CS=0"'
        ),
    ] = None,
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
        int | None,
        typer.Option(min=1, help="how many seeds: the paper's first, then others; default: as many as it ran"),
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
        if name is not None or listed or rows or columns or chosen_scale or seeds or as_json:
            raise InputError(
                "--queue takes tables, rows, columns, scale and seeds from its file, and prints no list and no JSON; "
                "leave them out of the command"
            )
        if dry_run:
            for each in plan_all(read_queue(queue), data):
                show_plan(each, data, as_json, quiet)
            return
        work_through(queue, jobs, cells_on, out, data, quiet)
        return
    if listed or name is None:
        show_list(as_json)
        return
    found = find(name)
    plan: Plan | FigurePlan
    if isinstance(found, Figure):
        refuse_options_of_tables({"--rows": rows, "--columns": columns, "--seeds": seeds}, found)
        plan = plan_figure(found, scale, data)
    else:
        plan = make_plan(found, scale, rows, columns, seeds, data)
    if dry_run:
        show_plan(plan, data, as_json, quiet)
        return
    check_anything_runs(plan)
    elsewhere = choose_elsewhere(jobs, cells_on, [run.execution for run in plan.runs], quiet)
    signals.explain(lambda: f"the runs so far are in {out}; the same command again goes on from there")
    with Announcer(quiet, tell_data=True) as announcer:
        finished = play(plan.runs, out / scale, data, announcer, elsewhere)
    if isinstance(plan, FigurePlan):
        make_figure(plan, finished, out, as_json)
    else:
        make_table_of(plan, finished, out, as_json)


def make_table_of(plan: Plan, finished: Mapping[Identity, Finished], out: Path, as_json: bool) -> None:
    """Writes a table and prints it."""
    figures, names, folder = write_table(plan, finished, out)
    if as_json:
        print_json(reproduction.to_record(plan, figures))
        return
    show_figures(plan, figures)
    console.print(f"\nin {folder}: {', '.join(names)}; the runs are in {out / plan.scale / 'runs'}", soft_wrap=True)


def write_table(plan: Plan, finished: Mapping[Identity, Finished], out: Path) -> tuple[list[Compared], list[str], Path]:
    """The figures, and the files that were written, in their folder."""
    figures = compare_figures(plan, finished)
    folder = out / plan.scale / plan.id.replace("/", "-")
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


def show_plan(plan: Plan | FigurePlan, data: Data, as_json: bool, quiet: bool) -> None:
    """Prints the runs of a plan with estimated hours and bytes."""
    tried: dict[str, Trial] = {}
    estimates: list[tuple[Run, Estimate]] = []
    for number, run in enumerate(plan.runs, 1):
        held = count_held(run, data.load(run.data))
        key = key_of(run, held)
        if key not in tried:
            if not quiet:
                note(f"[{number}/{len(plan.runs)}] trying {run.method} with {run.model}")
            tried[key] = try_out(run, held)
        estimates.append((run, estimate(run, tried[key], held)))
    if isinstance(plan, FigurePlan):
        kind, number, lost = "figure", 1, int(bool(plan.missing))
    else:
        kind, number = "table", len(plan.figures)
        lost = len({id(job.printed) for job in plan.jobs if job.missing})
    hours, sent = sum(each.hours for _, each in estimates), sum(each.gigabytes for _, each in estimates)
    if as_json:
        print_json({
            kind: plan.id, "scale": plan.scale, "figures": number, "hours": hours, "gigabytes": sent,
            "missing": plan.missing, "figures_without_data": lost,
            "runs": [{"method": str(run.method), "data": str(run.data), "split": str(run.split), "seed": run.seed,
                      "rounds": run.rounds, "hours": each.hours, "gigabytes": each.gigabytes}
                     for run, each in estimates],
        })  # fmt: skip
        return
    shown = make_table("method", "data", "split", "seed", "rounds", "hours", "GB", title=plan.id)
    for run, each in estimates:
        shown.add_row(
            str(run.method), str(run.data), str(run.split), str(run.seed), str(run.rounds), f"{each.hours:.2f}",
            f"{each.gigabytes:.2f}",
        )  # fmt: skip
    console.print(shown)
    console.print(
        f"{count_of(number, 'figure')}, {count_of(len(estimates), 'run')}: about {hours:.1f} hours on one "
        f"core, {sent:.1f} GB between server and clients (simulated: through no network)", soft_wrap=True,
    )  # fmt: skip
    console.print(f"scale {plan.scale}: {describe(plan.paper, plan.scale)}", style="dim", soft_wrap=True)
    for line in (*plan.notes, *plan.missing):
        console.print(line, style="dim", soft_wrap=True)
    if any(run.measure for run, _ in estimates):
        console.print("what is measured besides takes time of its own, which the hours leave out", soft_wrap=True)
    if lost:
        console.print(f"{count_of(lost, 'figure')} cannot be had here for lack of data", soft_wrap=True)


def make_figure(plan: FigurePlan, finished: Mapping[Identity, Finished], out: Path, as_json: bool) -> None:
    """Writes picture and data of a figure and says what it shows."""
    drawn, folder = write_figure(plan, finished, out)
    assert drawn is not None, "all of its runs are finished"
    if as_json:
        print_json(reproduction.figure_to_record(plan, drawn))
        return
    console.print(f"{plan.id}: {plan.figure.title}. {drawn.note}", soft_wrap=True)
    for line in (f"scale {plan.scale}: {describe(plan.paper, plan.scale)}", *plan.notes):
        console.print(line, style="dim", soft_wrap=True)
    console.print(f"in {folder}: figure.png, data.csv", soft_wrap=True)


def write_figure(
    plan: FigurePlan, finished: Mapping[Identity, Finished], out: Path
) -> tuple[Drawn | None, Path]:  # fmt: skip
    """Picture and data of a figure in its folder, once all its runs are finished."""
    folder = out / plan.scale / plan.id.replace("/", "-")
    drawn = sketch(plan, finished)
    if drawn is not None:
        folder.mkdir(parents=True, exist_ok=True)
        reproduction.draw(drawn, f"{plan.id}: {plan.figure.title} (scale {plan.scale})", folder / "figure.png")
        (folder / "data.csv").write_text(reproduction.figure_to_csv(drawn), encoding="utf-8")
        for name in [name for name, points in drawn.lines.items() if not points]:
            log.warning("%s: nothing to draw for '%s': its runs have no such figure", plan.id, name)
    return drawn, folder


def count_finished(places: Sequence[Place]) -> int:
    """How many of these runs are finished."""
    return sum(RunFolder(place.path).finished for place in places)


def work_through(queue: Path, jobs: int | None, cells_on: str | None, out: Path, data: Data, quiet: bool) -> None:
    """Works through a queue, side by side here or on a cluster; at its end, or where it stopped, writes tables."""
    plans = plan_all(read_queue(queue), data)
    places = list_places(plans, out, data)
    executions = [place.run.execution for place in places]
    elsewhere = choose_elsewhere(jobs, cells_on, executions, quiet, patient=True) if cells_on else None
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
    except BaseException:
        for error in write_all(plans, out, data):
            log.warning("%s", one_line(error))
        raise
    failed = sorted(write_all(plans, out, data), key=lambda error: isinstance(error, InputError))  # others first
    for error in failed[1:]:
        log.warning("%s", one_line(error))
    if failed:
        raise failed[0]


def write_all(plans: Sequence[Plan | FigurePlan], out: Path, data: Data) -> list[Exception]:
    """Writes all tables and figures of a queue as far as they have come; why runs or tables could not be had."""
    failed: list[Exception] = []
    unreadable: dict[Path, InputError] = {}
    for plan in join_plans(plans):
        try:
            finished = read_back(plan.runs, out / plan.scale, data, unreadable)
            console.print(f"{plan.id}: {write_what_is_there(plan, finished, out)}", soft_wrap=True)
        except Exception as error:  # the other tables are worth having all the same
            if is_from_signal(error):
                raise
            failed.append(error)
    return [*failed, *(InputError(f"{error}; its figures are left out above") for error in unreadable.values())]


def write_what_is_there(plan: Plan | FigurePlan, finished: Mapping[Identity, Finished], out: Path) -> str:
    """Writes a table as far as it has come, or a figure that is complete; says which."""
    if isinstance(plan, FigurePlan):
        drawn, folder = write_figure(plan, finished, out)
        if drawn is not None:
            return f"drawn, in {folder}"
        return plan.missing[0] if plan.missing else f"{len(finished)} of {len(plan.runs)} runs, not drawn yet"
    figures, _, folder = write_table(plan, finished, out)
    left = sum(figure.mark == "not run" for figure in figures)
    return f"{len(figures) - left} of {len(figures)} figures, in {folder}"
