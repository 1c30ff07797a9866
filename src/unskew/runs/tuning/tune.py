"""Every method gets the same budget of settings; the choice looks at validation data only, then fresh seeds compare.

Each trial is an ordinary run in a folder of its own, so finished ones are read back and interrupted ones resumed: which
settings are tried depends on the command and on finished trials alone.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from unskew.base import display
from unskew.base.errors import InputError
from unskew.base.process import neutral_torch
from unskew.base.registry import construct
from unskew.base.text import count_of
from unskew.core.method import Method
from unskew.data.dataset import Dataset
from unskew.measures import figures
from unskew.runs.arguments import read_seeds
from unskew.runs.comparison import Announce, CellResult, Cells, Elsewhere, Metric, compare_runs, place_runs, play_places
from unskew.runs.config import Run
from unskew.runs.sections import Evaluation
from unskew.runs.tuning import space
from unskew.runs.tuning.searches import KINDS, Kind, Search, Try, count_settings, list_rungs, make_search
from unskew.runs.tuning.space import Axis, Setting

log = logging.getLogger(__name__)
FIRST_SEED = 1000
"""Of tuning, where only their number is given."""
SHARE = 0.1
"""Of the training samples, held out for the choice where nobody says otherwise."""


@dataclass(frozen=True)
class Plan:
    """What is tuned, and how."""

    base: Run
    methods: tuple[Method, ...]
    axes: tuple[Axis, ...]
    budget: int
    """Whole runs for each method, with one seed."""
    search: Kind = "grid"
    tuning_seeds: tuple[int, ...] = (FIRST_SEED,)
    seeds: tuple[int, ...] = (0, 1, 2)
    metric: Metric = "last"

    def axes_of(self, method: Method) -> list[Axis]:
        """Those that concern this method."""
        return [axis for axis in self.axes if axis.method in ("", method.name)]


@dataclass(frozen=True)
class Trial:
    """A setting of a method, tried for so many rounds."""

    method: str
    setting: Setting
    rounds: int
    score: float | None
    """The validation figure, its mean over tuning seeds; None: a run of it diverged, and it never wins."""
    folders: tuple[str, ...]


@dataclass(frozen=True)
class Tuned:
    """What was chosen for a method."""

    method: str
    """As it was given."""
    run: Run
    """With the chosen setting."""
    chosen: Trial
    tried: int
    """Different settings."""
    possible: int | None
    """Settings of the grid; None: it has ranges."""
    runs_spent: float
    """In whole runs, with one seed."""
    borders: tuple[str, ...] = ()
    """Where the choice is the smallest or largest of a list."""


@dataclass(frozen=True)
class Tuning:
    """What came of it all."""

    trials: list[Trial]
    tuned: list[Tuned]
    cells: Cells
    """The chosen settings under fresh seeds, as `compare` gives them."""
    notes: tuple[str, ...]
    """How was tuned, for the table."""

    def __repr__(self) -> str:
        chosen = ", ".join(str(own.run.method) for own in self.tuned)
        return f"<tuning of {chosen}: {count_of(len(self.trials), 'trial')}>"

    def _repr_html_(self) -> str:
        return display.to_html(self)


def make_plan(
    base: Run, wanted: Sequence[Method], grid: Any, budget: Any, search: Any, tuning_seeds: Any, seeds: Sequence[int],
    metric: Metric, data: Dataset,
) -> Plan:  # fmt: skip
    """The plan of what a user asked for; refuses what cannot be tuned fairly."""
    if not isinstance(search, str) or search not in KINDS:
        raise InputError(f"--search is one of {', '.join(KINDS)}, got {search!r}")
    if not isinstance(metric, str) or metric not in get_args(Metric):
        known = ", ".join(name for name in get_args(Metric) if name != "best_on_test")
        raise InputError(f"there is no metric '{metric}'; known: {known}")
    if metric == "best_on_test":
        raise InputError("--metric best_on_test would look at the test data, which must not choose; take another one")
    names = [str(method) for method in wanted]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"'{twice}' is named twice; give each method once")
    if base.pool_test:
        raise InputError(
            "pool_test deals the test samples to the clients, whose held-out ones would choose; set it to false"
        )
    axes = tuple(space.read_grid(grid, wanted))
    number = _read_budget(budget, wanted, axes)
    plan = Plan(base, tuple(wanted), axes, number, search, _read_tuning_seeds(tuning_seeds), tuple(seeds), metric)
    if both := set(plan.seeds) & set(plan.tuning_seeds):
        raise InputError(f"seed {min(both)} is among --seeds and --tuning-seeds; the choice is compared on fresh seeds")
    _check_held_out(plan)
    share = base.evaluation.validation
    if not share and data.validation is None:
        plan = replace(plan, base=_evaluate(base, validation=SHARE))
    for method in wanted:  # what a value does not fit to is found before anything is run
        for setting in (trial.setting for trial in _make_search(plan, method).propose()):
            _make_run(plan, method, setting, base.rounds, plan.tuning_seeds[0])
            _restore(plan, space.apply(replace(plan.base, method=method), setting, plan.axes_of(method))).resolve(data)
    return plan


def _read_budget(given: Any, wanted: Sequence[Method], axes: Sequence[Axis]) -> int:
    """How many settings each method may have; without a word the largest grid of any method."""
    if given is None:
        sizes = [count_settings([axis for axis in axes if axis.method in ("", method.name)]) for method in wanted]
        if any(size is None for size in sizes):
            raise InputError("--budget says how many settings each method has; a --grid with ranges needs one")
        return max(size for size in sizes if size is not None)
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise InputError(f"--budget expects a whole number of at least 1, got {given!r}")
    return given


def _read_tuning_seeds(given: Any) -> tuple[int, ...]:
    """As `--seeds`, but a number means that many from 1000 on."""
    try:
        numbers = read_seeds(given)
    except InputError as error:
        raise InputError(str(error).replace("--seeds", "--tuning-seeds")) from None
    counted = isinstance(given, int) or (isinstance(given, str) and "," not in given)
    return tuple(FIRST_SEED + number for number in numbers) if counted else tuple(numbers)


def _check_held_out(plan: Plan) -> None:
    """Says where samples that choose may test later, and refuses where they would be the same ones."""
    if plan.base.evaluation.local_test != "holdout":
        return
    if plan.base.split_seed is not None:
        raise InputError(
            "with local_test = holdout and a split_seed the samples that choose would test the choice; leave "
            "split_seed out, or set evaluation.local_test (--local-test) to proportional"
        )
    log.warning(
        "local_test = holdout tests clients on samples of the training data, of which others choose the settings; "
        "with proportional no test sample has any part in it"
    )


def _evaluate(run: Run, **values: Any) -> Run:
    return replace(run, evaluation=construct(Evaluation, {**vars(run.evaluation), **values}))


def is_judged_at_clients(method: Method) -> bool:
    """Whether clients' held-out samples choose: its product is not one global model alone."""
    return method.output != "global"


def _make_search(plan: Plan, method: Method) -> Search:
    axes, seed = plan.axes_of(method), plan.tuning_seeds[0]
    return make_search(plan.search, axes, method.name, plan.budget, plan.base.rounds, seed)


def _make_run(plan: Plan, method: Method, setting: Setting, rounds: int, seed: int) -> Run:
    """A trial's run: judged on held-out training samples, and not tested at clients where that chooses nothing."""
    run = space.apply(replace(plan.base, method=method), setting, plan.axes_of(method))
    if is_judged_at_clients(method):
        run = _evaluate(run, validation=0.0, local_test="holdout")
    else:
        run = _evaluate(run, local_test="none")
    return construct(Run, {**vars(run), "rounds": rounds, "seed": seed})


@neutral_torch()
def tune(
    plan: Plan, data: Dataset, out: Path, announce: Announce | None = None, elsewhere: Elsewhere | None = None
) -> tuple[list[Trial], list[Tuned]]:
    """Tries settings of every method; the trials, and what was chosen."""
    searches = [(method, _make_search(plan, method)) for method in plan.methods]
    trials: list[Trial] = []
    while batch := [(method, each) for method, search in searches for each in search.propose()]:
        found = _try(plan, batch, data, out, announce, elsewhere)
        trials += found
        for method, search in searches:
            own = [trial.score for trial, (whose, _) in zip(found, batch, strict=True) if whose is method]
            if own:
                search.learn(own)
    return trials, [_choose(plan, method, trials) for method in plan.methods]


def _try(
    plan: Plan, batch: Sequence[tuple[Method, Try]], data: Dataset, out: Path, announce: Announce | None,
    elsewhere: Elsewhere | None,
) -> list[Trial]:  # fmt: skip
    runs = [_make_run(plan, method, *each, seed) for method, each in batch for seed in plan.tuning_seeds]
    cells = list(play_places(place_runs(runs, data, out / "trials"), announce, elsewhere))
    size, found = len(plan.tuning_seeds), []
    for number, (method, each) in enumerate(batch):
        own = cells[number * size : (number + 1) * size]
        scores = [read_score(cell, plan) for cell in own]
        known = [score for score in scores if score is not None]
        score = sum(known) / size if len(known) == size else None
        found.append(Trial(str(method), each.setting, each.rounds, score, tuple(cell.folder.name for cell in own)))
    return found


def read_score(cell: CellResult, plan: Plan) -> float | None:
    """The figure of a trial's validation curve that the metric names; None if it diverged."""
    rows = [row for row in cell.rounds if row["round"] > 0]
    curve = [row["validation"] for row in rows if "validation" in row]
    if cell.output != "global":
        curve = [row["personal"]["pooled"] for row in rows if row.get("personal", {}).get("clients_tested")]
    if cell.summary["diverged"] or not curve:
        return None
    if plan.metric == "best_on_validation":
        return figures.best(curve)
    if plan.metric == "last_k":
        return figures.last_k_mean(curve, plan.base.evaluation.last_k)
    return figures.last_share_mean(curve) if plan.metric == "last_10_percent" else figures.last(curve)


def _choose(plan: Plan, method: Method, trials: Sequence[Trial]) -> Tuned:
    """The best of those that had all rounds, the first of equals."""
    own = [trial for trial in trials if trial.method == str(method)]
    whole = [trial for trial in own if trial.rounds == plan.base.rounds and trial.score is not None]
    tried = {space.describe(trial.setting) for trial in own}
    if not whole:
        raise InputError(
            f"{method}: all {count_of(len(tried), 'setting')} diverged, so there is none to choose; add others to "
            "--grid, such as a smaller lr (finished trials are kept)"
        )
    best = max(whole, key=lambda trial: trial.score or 0.0)
    axes = plan.axes_of(method)
    borders = tuple(
        f"{axis.name}={best.setting[axis.name]} is the {border} of its list"
        for axis in axes
        if (border := axis.find_border(best.setting[axis.name]))
    )
    for border in borders:
        log.warning("%s: %s; a better value may lie beyond it", method, border)
    spent = sum(trial.rounds for trial in own) / plan.base.rounds
    chosen = _restore(plan, space.apply(replace(plan.base, method=method), best.setting, axes))
    return Tuned(str(method), chosen, best, len(tried), count_settings(axes), spent, borders)


def _restore(plan: Plan, run: Run) -> Run:
    """For the comparison: all training samples train, unless the round is chosen on validation data, too."""
    return run if plan.metric == "best_on_validation" else _evaluate(run, validation=0.0)


@neutral_torch()
def compare_tuned(
    plan: Plan,
    tuned: Sequence[Tuned],
    data: Dataset,
    out: Path,
    announce: Announce | None = None,
    elsewhere: Elsewhere | None = None,
) -> Cells:
    """The chosen settings on fresh seeds."""
    runs = [construct(Run, {**vars(own.run), "seed": seed}) for seed in plan.seeds for own in tuned]
    return compare_runs(place_runs(runs, data, out / "runs"), announce, elsewhere)


def explain(plan: Plan, data: Dataset) -> tuple[str, ...]:
    """How was tuned, in lines for the table."""
    kinds = {is_judged_at_clients(method) for method in plan.methods}
    share = f"{100 * plan.base.evaluation.validation:g} % of the training samples, held out"
    where = share if data.validation is None else "the data's own validation samples"
    budget, numbers = count_of(plan.budget, "whole run"), ", ".join(map(str, plan.tuning_seeds))
    lines = [
        f"tuned with --search {plan.search}: a budget of {budget} for each method and tuning seed ({numbers}), none of "
        "them a seed of the comparison"
    ]
    if False in kinds:
        lines.append(f"settings are chosen by accuracy on {where}; no test sample has a part in it")
    if True in kinds:
        held = f"{100 * plan.base.evaluation.holdout:g} % of each client's training samples, held out"
        lines.append(f"settings of methods with clients' own models are chosen by accuracy on {held}")
    if plan.search == "halving":
        rungs = " / ".join(map(str, list_rungs(plan.base.rounds)))
        lines.append(f"halving: rungs of {rungs} rounds, a third goes on; all its rounds count towards the budget")
    sizes = [count_settings(plan.axes_of(method)) or 0 for method in plan.methods]
    if plan.search in ("grid", "random") and max(sizes) > plan.budget:
        lines.append("a grid above the budget is drawn from without repetition (seed: the first of tuning); the j-th "
                     "setting has the same common values for every method")  # fmt: skip
    if plan.metric != "best_on_validation" and data.validation is None:
        lines.append("the chosen settings train on all training samples")
    return tuple(lines)
