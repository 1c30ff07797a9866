"""Reproductions: the runs of a table's cells, played or read back, and their figures beside the printed ones."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from unskew.base.errors import InputError
from unskew.base.process import neutral_torch
from unskew.data.dataset import Dataset
from unskew.data.sources import load
from unskew.data.sources.base import Source, sources
from unskew.measures.figures import mean_and_std
from unskew.recipes.base import Cell, Computed, Drawn, Figure, Finished, Paper, Printed, Scale, Table
from unskew.recipes.scales import check_whole, look_for, scale_run
from unskew.runs import building, engine
from unskew.runs.comparison import Elsewhere, Place, run_cell
from unskew.runs.config import Run
from unskew.runs.folder import RunFolder

Mark = Literal[
    "within noise", "above", "below", "equal", "other", "not run", "no figure", "other machine", "other scale"
]
Watch = Callable[[Run, int, int], "engine.Watch | None"]
"""Called before each run with its number and the number of all; gives who watches its rounds."""
UNSAID = {"%": 2.0}
"""What counts as noise where neither the paper nor several seeds here say how much figures vary: points, else 5 %."""


@dataclass(frozen=True)
class Job:
    """One printed figure under one seed: its run at the scale, and the run that it is divided by."""

    printed: Printed
    cell: Cell
    seed: int
    run: Run
    against: Run | None
    missing: str = ""
    """Why it cannot be run here."""


@dataclass(frozen=True)
class Plan:
    """What a reproduction of a table takes."""

    table: Table
    scale: Scale
    seeds: tuple[int, ...]
    figures: tuple[Printed, ...]
    jobs: tuple[Job, ...]
    computed: tuple[tuple[Printed, Computed], ...]
    notes: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """The table's name."""
        return self.table.id

    @property
    def paper(self) -> Paper:
        """Whose table it is."""
        return self.table.paper

    @property
    def runs(self) -> list[Run]:
        """The distinct runs, in the order of the table, seed by seed."""
        wanted = [run for job in self.jobs if not job.missing for run in (job.run, job.against) if run is not None]
        return _each_once(wanted)

    @property
    def missing(self) -> list[str]:
        """Why some of its figures cannot be had here, each reason once."""
        return sorted({job.missing for job in self.jobs if job.missing})


@dataclass(frozen=True)
class FigurePlan:
    """What a reproduction of a figure takes: its runs under the first of the paper's seeds."""

    figure: Figure
    scale: Scale
    chosen: Mapping[Any, Run]
    """Each run under the name that the figure's recipe knows it by."""
    missing: list[str]
    """Why it cannot be had here, each reason once."""
    notes: tuple[str, ...]

    @property
    def id(self) -> str:
        """The figure's name."""
        return self.figure.id

    @property
    def paper(self) -> Paper:
        """Whose figure it is."""
        return self.figure.paper

    @property
    def runs(self) -> list[Run]:
        """The distinct runs; none where one of them cannot be had here."""
        return [] if self.missing else _each_once(self.chosen.values())


@dataclass(frozen=True)
class Compared:
    """A printed figure and ours."""

    printed: Printed
    values: tuple[float | str, ...]
    """One for each seed that has one."""
    mark: Mark
    note: str = ""

    @property
    def ours(self) -> str:
        """`mean ± std`; without the deviation where there is one seed."""
        numbers = [value for value in self.values if isinstance(value, (int, float))]
        if not numbers:
            return str(self.values[0]) if self.values else "–"
        mean, std = mean_and_std(numbers)
        places = 2 if abs(mean) >= 1 else 4
        return f"{mean:.{places}f}" + ("" if math.isnan(std) else f" ± {std:.{places}f}")

    @property
    def difference(self) -> float | None:
        """Ours less the printed, where they are of the same setting."""
        if self.mark in ("other scale", "other machine"):
            return None
        numbers = [value for value in self.values if isinstance(value, (int, float))]
        return None if self.printed.value is None or not numbers else mean_and_std(numbers)[0] - self.printed.value


@dataclass
class Data:
    """Data sets, each loaded once; what is missing is a line."""

    data_dir: Path | None = None
    _loaded: dict[str, Dataset] = field(default_factory=dict)
    _states: dict[str, tuple[str, str]] = field(default_factory=dict)

    def is_here(self, source: Source) -> bool:
        """Whether its files are on this machine."""
        return look_for(source, self.data_dir).here

    def check(self, source: Source) -> tuple[str, str]:
        """Why a data set cannot be used (empty: it can), and what is to be said of it."""
        name = str(source)
        if name not in self._states:
            state = look_for(source, self.data_dir)
            lack = check_whole(source, self.load(source)) if state.here else state.note
            self._states[name] = (lack, state.note if state.here else "")
        return self._states[name]

    def load(self, source: Source) -> Dataset:
        """The data set."""
        name = str(source)
        if name not in self._loaded:
            self._loaded[name] = load(source, self.data_dir, offline=True)
        return self._loaded[name]

    def resolve(self, run: Run) -> Run:
        """The run with what depends on its data filled in."""
        return run.resolve(building.prepare_data(run, dataset=self.load(run.data)))


Identity = tuple[int, str, str]


def identify(run: Run) -> Identity:
    """What tells runs apart: seed, hash, and what is measured."""
    return run.seed, run.hash, ",".join(map(str, run.measure))


def _each_once(runs: Iterable[Run]) -> list[Run]:
    return list({identify(run): run for run in runs}.values())


def make_plan(table: Table, scale: Scale, rows: str | None, columns: str | None, seeds: int | None, data: Data) -> Plan:
    """The runs that give these figures of a table, as far as their data are here."""
    figures = table.select(rows, columns)
    numbers = choose_seeds(table.paper, seeds if seeds is not None else table.seeds)
    jobs, computed, notes = [], [], []
    for printed in figures:
        cell = table.recipe(printed.keys)
        if isinstance(cell, Computed):
            computed.append((printed, cell))
            continue
        run, missing, note = place(table.paper, cell.run, scale, data, cell.images_matter)
        against = place(table.paper, cell.against, scale, data, cell.images_matter)[0] if cell.against else None
        notes.append(note)
        for seed in numbers:
            other = replace(against, seed=seed) if against else None
            jobs.append(Job(printed, cell, seed, replace(run, seed=seed), other, missing))
    others = [str(seed) for seed in numbers if seed not in table.paper.seeds]
    if jobs and others:
        listed = ", ".join(others) if len(others) <= 8 else f"{others[0]} to {others[-1]}"
        notes.append(f"seeds {listed}: not the paper's, which end with {table.paper.seeds[-1]}")
    said = tuple(dict.fromkeys(note for note in notes if note))
    return Plan(table, scale, numbers, figures, tuple(jobs), tuple(computed), said)


def plan_figure(figure: Figure, scale: Scale, data: Data) -> FigurePlan:
    """The runs that a figure is drawn of."""
    seed = figure.paper.seeds[0]
    placed = {
        name: place(figure.paper, replace(run, seed=seed), scale, data) for name, run in figure.runs().items()
    }  # fmt: skip
    chosen = {name: run for name, (run, _, _) in placed.items()}
    missing = sorted({lack for _, lack, _ in placed.values() if lack})
    return FigurePlan(
        figure, scale, chosen, missing, tuple(dict.fromkeys(note for *_, note in placed.values() if note))
    )


def sketch(plan: FigurePlan, finished: Mapping[Identity, Finished]) -> Drawn | None:
    """The figure; None while one of its runs is not finished."""
    if any(identify(run) not in finished for run in plan.chosen.values()):
        return None
    return plan.figure.sketch({name: finished[identify(run)] for name, run in plan.chosen.items()})


def choose_seeds(paper: Paper, number: int | None) -> tuple[int, ...]:
    """The first of the paper's seeds; more than it has go on from the last."""
    wanted = len(paper.seeds) if number is None else number
    more = range(paper.seeds[-1] + 1, paper.seeds[-1] + 1 + max(0, wanted - len(paper.seeds)))
    return (*paper.seeds, *more)[:wanted]


def place(paper: Paper, run: Run, scale: Scale, data: Data, images_matter: bool = True) -> tuple[Run, str, str]:
    """The run at this scale, why it cannot be run here, and what is to be said of its data."""
    if scale == "smoke":
        here = data.is_here(run.data)
        note = "" if here else f"data '{run.data.name}' are not here: generated images of its shape stand in"
        return scale_run(paper, run, scale, here), "", note
    small = scale_run(paper, run, scale, True)
    missing, note = data.check(small.data)
    if missing and not images_matter:
        stand_in = replace(small, data=sources.build({"name": "stand_in", "like": small.data}))
        return stand_in, "", f"{missing}: generated images stand in, of which the figure does not depend"
    return small, missing, note


@neutral_torch()
def play(
    runs: Sequence[Run], out: Path, data: Data, watch: Watch | None = None, elsewhere: Elsewhere | None = None
) -> dict[Identity, Finished]:
    """Every run, finished ones read back, interrupted ones resumed; by the identity of the unresolved run.

    `elsewhere`: who runs them side by side, if not this process one after the other.
    """
    found = {}
    if elsewhere is not None:
        elsewhere(list_cells(runs, out, data), watch)
    for number, run in enumerate(runs, 1):
        resolved = data.resolve(run)
        seen = watch(resolved, number, len(runs)) if watch else None
        place = place_of(resolved, out)
        cell = run_cell(resolved, place, data.load(run.data), seen)
        rows = list(RunFolder(place).client_rows())
        found[identify(run)] = Finished(resolved, cell.summary, cell.rounds, rows)
    return found


def list_cells(runs: Sequence[Run], out: Path, data: Data) -> list[Place]:
    """Every run with its data and its folder, each folder once."""
    cells: dict[Path, Place] = {}
    for run in runs:
        resolved = data.resolve(run)
        place = place_of(resolved, out)
        cells.setdefault(place, Place(resolved, data.load(run.data), place))
    return list(cells.values())


def read_back(
    runs: Sequence[Run], out: Path, data: Data, unreadable: dict[Path, InputError]
) -> dict[Identity, Finished]:
    """The runs that are finished; nothing is run. Damaged ones are left out and go to `unreadable`."""
    found: dict[Identity, Finished] = {}
    for run in runs:
        place = place_of(data.resolve(run), out)
        if RunFolder(place).finished:
            try:
                found |= play([run], out, data)
            except InputError as error:
                unreadable[place] = error
    return found


def place_of(resolved: Run, out: Path) -> Path:
    """The folder of a run: tables share it, but for runs that measure something else."""
    name = f"{resolved.method.name}-{resolved.data.name}-seed{resolved.seed}-{resolved.hash}"
    if resolved.measure:  # no part of the hash, as it changes no result; but a run has only what it measured
        digest = hashlib.blake2b(identify(resolved)[2].encode(), digest_size=3).hexdigest()
        name = "-".join((name, *(measure.name for measure in resolved.measure), digest))
    return out.absolute() / "runs" / name


def compare_figures(plan: Plan, finished: Mapping[Identity, Finished]) -> list[Compared]:
    """Each printed figure with ours."""
    jobs: dict[int, list[Job]] = {}
    for job in plan.jobs:
        jobs.setdefault(id(job.printed), []).append(job)
    computed = {id(printed): cell for printed, cell in plan.computed}
    figures = []
    for printed in plan.figures:
        if id(printed) in computed:
            value = computed[id(printed)].compute(plan.scale)
            figures.append(Compared(printed, (value,), judge(plan, printed, (value,))))
            continue
        own = jobs[id(printed)]
        values = tuple(value for job in own for value in _values(job, finished))
        if values:
            mark = judge(plan, printed, values) if plan.scale == "full" else "other scale"
            figures.append(Compared(printed, values, mark))
        else:
            done = any(identify(job.run) in finished for job in own)
            figures.append(Compared(printed, (), "no figure" if done else "not run", own[0].missing))
    return figures


def _values(job: Job, finished: Mapping[Identity, Finished]) -> Iterator[float]:
    run = finished.get(identify(job.run))
    value = job.cell.read(run) if run else None
    if value is None or job.against is None:
        if value is not None:
            yield value
        return
    other = finished.get(identify(job.against))
    base = job.cell.read(other) if other else None
    if base and value:
        yield base / value if job.cell.inverse else value / base


def judge(plan: Plan, printed: Printed, values: Sequence[float | str]) -> Mark:
    """Whether a figure is the printed one, as far as noise lets one say it."""
    if not plan.table.comparable:
        return "other machine"
    if printed.value is None:
        return "equal" if _plain(str(values[0])) == _plain(printed.text) else "other"
    numbers = [float(value) for value in values]
    mean, std = mean_and_std(numbers)
    difference = mean - printed.value
    if abs(difference) < 0.5 * 10 ** -_places(printed.text) + 1e-9:
        return "equal"
    return (
        "within noise"
        if abs(difference) <= noise_of(plan, printed, numbers, std)
        else ("above" if difference > 0 else "below")
    )


def noise_of(plan: Plan, printed: Printed, values: Sequence[float], std: float) -> float:
    """How far apart two means may be by chance: two standard errors of their difference.

    The printed deviation stands for ours where there is one seed, ours for the printed where none is printed; a
    deviation of few seeds of our own is uncertain itself, so that Student's quantile takes the place of the two.
    """
    theirs = printed.std if plan.table.spread == "seeds" and printed.std else None
    ours = None if math.isnan(std) else std
    runs = plan.table.seeds or len(plan.table.paper.seeds)
    one, other = theirs if theirs is not None else ours, ours if ours is not None else theirs
    if one is None or other is None:
        return UNSAID.get(plan.table.unit, 0.05 * abs(printed.value or 0.0))
    factor = 2.0 if theirs is not None else max(2.0, _student(len(values) - 1))
    return factor * math.sqrt(one**2 / runs + other**2 / len(values))


def _student(freedom: int) -> float:
    """The 97.5 % quantile of Student's distribution."""
    from scipy.special import stdtrit  # here, as it is slow to import

    return float(stdtrit(freedom, 0.975))


def _places(text: str) -> int:
    return len(text.partition(".")[2])


def _plain(text: str) -> str:
    return text.replace(" ", "").lower()


def check_anything_runs(plan: Plan | FigurePlan) -> None:
    """An error where none of the chosen figures can be had here."""
    if isinstance(plan, FigurePlan):
        if plan.missing:
            raise InputError(f"{plan.id}: {plan.missing[0]}; get the data, or try --scale smoke")
        return
    if plan.jobs and not plan.computed and all(job.missing for job in plan.jobs):
        raise InputError(
            f"{plan.id}: none of the chosen cells can be run at scale {plan.scale}: {plan.jobs[0].missing}; "
            "get the data, choose other cells (--rows, --columns), or try --scale smoke"
        )
