"""Runs read from their folders for a report: no code of the user's, no data, nothing run again."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from unskew.base.errors import InputError, let_pass
from unskew.runs.config import read_file
from unskew.runs.folder import Row, RunFolder
from unskew.runs.labels import Labels, read_labels
from unskew.runs.last_test import read_confusion
from unskew.runs.saved import SavedRun
from unskew.runs.summary import GLOBAL, summarise_rows

SETTING = ("data", "split", "model", "clients", "sample", "rounds")
"""What runs must have in common to be compared with each other."""
MOST_VISITS = 4000
"""Rows about clients' weights that are kept of a run."""


@dataclass(frozen=True)
class ReadRun:
    """A run as its folder tells it."""

    path: Path
    method: str
    about: Row
    output: str
    """Which model is the method's product: `global`, `personal`, `both` or `tuned`."""
    summary: Row | None
    """Of an unfinished run what its rows say so far; None where no round was tested yet."""
    rounds: list[Row]
    finished: bool
    options: Row
    """What run.toml holds."""
    run_file: str
    accuracies: list[float] = field(default_factory=list)
    """Of the clients, each on its own test set, in the last round that tested them."""
    weighed: list[Row] = field(default_factory=list)
    """Visits that noted a Fisher weight (FedAS)."""
    labels: Labels | None = None
    classes: list[str] = field(default_factory=list)

    @property
    def seed(self) -> int:
        """The run's seed."""
        return int(self.about["seed"])

    @property
    def setting(self) -> tuple[str, ...]:
        """Everything that a comparison holds fixed, as texts."""
        return tuple(str(self.about[key]) for key in SETTING)

    @property
    def done(self) -> int:
        """The rounds so far."""
        return max((row["round"] for row in self.rounds), default=0)


@dataclass(frozen=True)
class Gathered:
    """All that a report is made of."""

    runs: list[ReadRun]
    problems: list[str] = field(default_factory=list)
    """Runs that could not be read, a line each."""
    tables: list[Row] = field(default_factory=list)
    """The table.json of comparisons among the folders."""


def gather(paths: Sequence[Path]) -> Gathered:
    """The runs of these folders: runs, comparisons, or folders that hold some; of a comparison those it compared."""
    found: dict[Path, None] = {}
    tables: list[Row] = []
    for path in paths:
        own = find_folders(path, tables)
        if not own:
            raise InputError(f"there are no runs in {path}; give the folder of a run or a comparison")
        found |= dict.fromkeys(own)
    runs: list[ReadRun] = []
    problems: list[str] = []
    seen: dict[tuple[str | bytes, ...], Path] = {}
    for folder in found:
        try:
            copied = seen.setdefault(_identify(folder), folder)
            if copied is not folder:
                problems.append(f"{folder} is a copy of {copied}")
                continue
            runs.append(read_run(folder))
        except InputError as error:
            problems.append(str(error))
        except OSError as error:
            let_pass(error)
            problems.append(f"{folder} cannot be read: {error.strerror or error}")
    if not runs:
        raise InputError(problems[0])
    return Gathered(_tell_apart(runs), problems, tables)


def find_folders(path: Path, tables: list[Row]) -> list[Path]:
    """The folders of runs in a folder, in the order of the comparisons that they are of; adds these to `tables`."""
    if not path.is_dir():
        raise InputError(f"{path} is no folder; give the folder of a run or a comparison")
    if not _is_readable(path):
        raise InputError(f"{path} cannot be read: it belongs to somebody else; ask them, or copy it")
    return _find_in(path, tables, set())


def _find_in(path: Path, tables: list[Row], seen: set[Path]) -> list[Path]:
    """The same, below `path`; `seen`: folders that were looked into, to which links may lead back."""
    if (real := path.resolve()) in seen:
        return []
    seen.add(real)
    if (path / "run.toml").is_file():
        return [path]
    compared = _read_table(path / "table.json")
    if compared is not None:
        listed = [path / "runs" / name for name in compared["comparison"]["runs"]]
        if there := [folder for folder in listed if (folder / "run.toml").is_file()]:
            tables.append(compared)
            return there
    inside = [each for each in path.iterdir() if _may_hold_runs(each) and _is_readable(each)]
    return [run for each in sorted(inside, key=_begun) for run in _find_in(each, tables, seen)]


def _may_hold_runs(path: Path) -> bool:
    return path.is_dir() and path.name != "trials" and path.name[0] != "."


def _is_readable(path: Path) -> bool:
    return os.access(path, os.R_OK | os.X_OK)


def _identify(folder: Path) -> tuple[str | bytes, ...]:
    """What tells a run from all others: its options, and its rows with the times that they took."""
    files = [folder / name for name in ("run.toml", "rounds.jsonl")]
    return tuple(file.read_bytes() for file in files) if all(map(Path.is_file, files)) else (str(folder),)


def _begun(folder: Path) -> tuple[float, str]:
    file = folder / "split.json"  # is written once
    return (file if file.exists() else folder).stat().st_mtime, folder.name


def _read_table(path: Path) -> Row | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        names = found["comparison"]["runs"]
        return found if isinstance(found["rows"], list) and all(isinstance(name, str) for name in names) else None
    except (OSError, ValueError, KeyError, TypeError) as error:
        let_pass(error)
        return None


def read_run(path: Path) -> ReadRun:
    """A run's folder, finished or not."""
    run, folder, options = SavedRun(path), RunFolder.at(path), read_file(path / "run.toml")
    rows = run.rounds
    finished = run.finished
    foreign = bool(options.get("plugins") or options.get("code"))
    if finished:
        summary: Row | None = run.summary
    else:
        summary = _sum_up_so_far(rows, options)
    about = _describe(options, summary if finished else None) if foreign else run.about
    if missing := [key for key in ("method", "seed", *SETTING) if about.get(key) is None]:
        raise InputError(f"{path / 'run.toml'} is none that a run wrote: it lacks {missing[0]}; give a run's folder")
    output = _guess_output(summary, rows) if foreign else run.output
    accuracies, weighed = _read_clients(folder)
    return ReadRun(
        path, str(about["method"]), about, output, summary, rows, finished, options,
        (path / "run.toml").read_text(encoding="utf-8"), accuracies, weighed, labels := read_labels(path),
        labels.classes if labels else _find_classes(path),
    )  # fmt: skip


def _sum_up_so_far(rows: list[Row], options: Row) -> Row | None:
    evaluation = options.get("evaluation")
    last_k = evaluation.get("last_k", 10) if isinstance(evaluation, dict) else 10
    try:
        return summarise_rows(rows, int(last_k), "", True)
    except (InputError, KeyError, TypeError, ValueError, IndexError):
        return None


def _describe(options: Row, summary: Row | None) -> Row:
    """What was run, where it takes the user's code to say it: the summary's words, else names."""
    said = {key: value for key, value in (summary or {}).items() if key != "rounds"}  # those that were run, there
    names = {key: value.get("name", "?") if isinstance(value, dict) else value for key, value in options.items()}
    return {key: said.get(key, names.get(key)) for key in ("method", "seed", *SETTING)}


def _guess_output(summary: Row | None, rows: list[Row]) -> str:
    if summary is None:
        return "global" if any("accuracy" in row for row in rows) else "personal"
    if not str(summary["accuracy_of"]).startswith(GLOBAL):
        return "personal"
    return "both" if "personal_accuracy" in summary else "global"


def _read_clients(folder: RunFolder) -> tuple[list[float], list[Row]]:
    """The accuracies of the last test of clients, and the visits that noted a Fisher weight."""
    newest = -1
    tests: dict[int, float] = {}
    weighed: list[Row] = []
    for row in folder.client_rows():
        if "accuracy" in row:
            if row["round"] > newest:
                newest, tests = row["round"], {}
            if row["accuracy"] is not None:
                tests[row["client"]] = float(row["accuracy"])
        elif "fisher_alpha" in row and len(weighed) < MOST_VISITS:
            weighed.append(row)
    return list(tests.values()), weighed


def _find_classes(path: Path) -> list[str]:
    try:
        return list(read_confusion(path).classes)
    except InputError:
        return []


def _tell_apart(runs: list[ReadRun]) -> list[ReadRun]:
    """Runs of one method and setting that are not seeds of one thing get other names."""
    alike: dict[tuple[str, ...], list[ReadRun]] = {}
    for run in runs:
        alike.setdefault(run.setting, []).append(run)
    named: dict[Path, str] = {}
    for group in alike.values():
        names = name_runs([(run.path, run.method, run.options) for run in group])
        named |= {run.path: name for run, name in zip(group, names, strict=True)}
    return [replace(run, method=named[run.path]) for run in runs]


def name_runs(runs: Sequence[tuple[Path, str, Row]]) -> list[str]:
    """The method of each run (folder, method, options); with the options in which runs of one method differ, if not
    only in their seeds, or with the folder's name."""
    flat = {path: flatten(options) for path, _, options in runs}
    named: dict[Path, str] = {}
    for method in dict.fromkeys(method for _, method, _ in runs):
        own = {path: flat[path] for path, whose, _ in runs if whose == method}
        every = dict.fromkeys(key for options in own.values() for key in options)
        keys = [key for key in every if not key.startswith(FREE) and len({str(o.get(key)) for o in own.values()}) > 1]
        seeds = [options.get("seed") for options in own.values()]
        if not keys and len(set(seeds)) == len(seeds):
            named |= dict.fromkeys(own, method)
            continue
        words = {path: ", ".join(f"{k.rpartition('.')[2]}={o.get(k)}" for k in keys[:3]) for path, o in own.items()}
        known = [(words[path], options.get("seed")) for path, options in own.items()]
        for path, options in own.items():
            alone = words[path] and known.count((words[path], options.get("seed"))) == 1
            named[path] = f"{method} [{words[path] if alone else path.name}]"
    return [named[path] for path, _, _ in runs]


FREE = ("execution.", "seed", "measure", "track", "plugins", "code", "begun_in", "extended", "evaluation.every",
        "evaluation.clients_every", "evaluation.batch", "evaluation.figures")  # fmt: skip
"""Options in which seeds of one thing may differ: they change no figure."""


def flatten(table: Row, above: str = "") -> dict[str, Any]:
    """A run file's options by their whole names, such as `local.lr`."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= flatten(value, f"{above}{key}.") if isinstance(value, dict) else {f"{above}{key}": value}
    return found
