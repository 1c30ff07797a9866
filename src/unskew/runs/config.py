"""One `Run` object says everything about a run; a TOML file, the command line and Python build the same object."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import hashlib
import json
import logging
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tomli_w
from typing_extensions import NotRequired, TypedDict

import unskew.methods
import unskew.terms
import unskew.wire  # noqa: F401 - these imports register what is in the rooms
from unskew.base import plugins, user_code
from unskew.base.errors import InputError, let_pass
from unskew.base.once import warn_once
from unskew.base.registry import Component, Registry, component_fields, construct, nearest, param, to_table
from unskew.base.text import Table, parse, split_list
from unskew.core.checks.faults import naming
from unskew.core.checks.watching import is_foreign
from unskew.core.method import Method, methods
from unskew.core.schedule import fit_schedule, read_factor, schedules, split_rate, walk_schedules
from unskew.core.term import check_terms
from unskew.core.tolerance import USUAL, find_tolerance
from unskew.data.dataset import Dataset
from unskew.data.partition.splits import Split, splits
from unskew.data.sources.base import Source, sources
from unskew.data.transforms import Augment, Transform, transforms
from unskew.measures.base import Measure, build_all
from unskew.models.base import Architecture, architectures, build
from unskew.runs import rules
from unskew.runs.sections import SMALLEST, Evaluation, Execution, Local, section
from unskew.runs.tracking import trackers
from unskew.runs.tracking.base import Tracker
from unskew.runs.weights import Weights, read_patterns, read_weights
from unskew.wire.base import Processor, processors

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

log = logging.getLogger(__name__)


class CodeChange(TypedDict):
    """The user went on with changed code."""

    round: int
    """The last round that the earlier code ran."""
    code: dict[str, str]
    """The earlier code."""
    run: NotRequired[str]
    """The hash that the run had, where the options of its parts changed with the code."""


class Extension(TypedDict):
    """The run went on from a shorter one."""

    run: str
    """The hash of the shorter one."""
    rounds: int
    """How many rounds that had."""
    after: int
    """The last round that was taken over."""
    same: bool
    """Whether these rounds are those that a run of this length has from the start."""


@section
class Run(Component):
    """Everything about a run."""

    method: Method = param(default=methods.build("fedavg"), doc="the method")
    data: Source = param(default=sources.build("digits"), doc="the data set")
    model: Architecture | None = param(default=None, doc="the model; default: one that fits the data's shape")
    split: Split = param(default=splits.build("dirichlet:0.1"), doc="how the data are dealt to the clients")
    split_seed: int | None = param(
        default=None, ge=0, lt=2**32, doc="seed of the split alone; default: from the run's seed"
    )
    pool_test: bool = param(default=False, doc="deal training and test samples to the clients together (FedAS)")
    augment: Transform = param(default=transforms.build("none"), doc="augmentation of training batches")
    clients: int | None = param(default=None, ge=1, doc="number of clients; default: what the split says, else 20")
    sample: float = param(default=1.0, gt=0, le=1, doc="share of the clients that take part in a round")
    dropout: float = param(default=0.0, ge=0, lt=1, doc="probability that a sampled client fails to reply")
    stragglers: float = param(default=0.0, ge=0, le=1, doc="fixed share of the clients that are often offline")
    straggler_online: float = param(
        default=0.5, ge=0, le=1, doc="probability that a sampled straggler is online in a round"
    )
    rounds: int = param(default=20, ge=1, doc="communication rounds")
    seed: int = param(default=0, ge=0, lt=2**63, doc="fixes everything random")
    local: Local = param(default=Local(), doc="local training")
    evaluation: Evaluation = param(default=Evaluation(), doc="evaluation")
    execution: Execution = param(default=Execution(), doc="execution")
    measure: tuple[Measure, ...] = param(default=(), doc="what to record besides, such as drift,rank (see `measures`)")
    wire: tuple[Processor, ...] = param(
        default=(), doc="what happens to replies on their way, such as clip(norm=1.0),quantise(bits=8) (see `wire`)"
    )
    init: Weights | None = param(default=None, doc="a .safetensors file of weights to start from")
    init_only: tuple[str, ...] = param(default=(), doc="which of them, such as body.*; default: all")
    freeze: tuple[str, ...] = param(default=(), doc="parameters that stay as they are, such as body.*")
    track: tuple[Tracker, ...] = param(
        default=(), doc="where to show the run's curves: tensorboard:DIR, mlflow:DIR-or-URI, wandb:PROJECT"
    )
    plugins: tuple[str, ...] = param(default=(), doc="Python files or modules to import first, for what they register")
    code: dict[str, str] = param(default={}, doc="hashes of the user's code that the run uses; found, never believed")
    code_changes: tuple[CodeChange, ...] = param(default=(), doc="where the run went on with changed code")
    begun_in: str = param(default="", doc="the folder from which relative places of the user's code are found")
    extended: tuple[Extension, ...] = param(default=(), doc="shorter runs that it went on from")

    @property
    def hash(self) -> str:
        """Names a resolved run: equal for runs that must give equal results."""
        return self.hash_with({})

    def hash_with(self, parts: Mapping[str, Any]) -> str:
        """The same with the tables of these parts (method, model …) in the place of its own."""
        table = {**to_table(self), **parts}
        del table["plugins"], table["begun_in"]  # where code is stored is not what it does
        if differing := [e["after"] for e in table.pop("extended") if not e["same"]]:
            table["extended"] = differing
        changes = table.pop("code_changes")
        table["code"] = [sorted(code.values()) for code in (*(change["code"] for change in changes), self.code)]
        if not any(table["code"]):
            del table["code"]
        del table["measure"], table["track"]  # looking on changes no result
        if not self.stragglers:  # off: the same run as before this option existed
            del table["stragglers"], table["straggler_online"]
        for key in ("wire", "init_only", "freeze"):
            if not table[key]:
                del table[key]
        if "init" in table:
            table["init"] = table["init"]["digest"]  # where the file lies is not what it holds
        if not self.evaluation.figures:
            table["evaluation"] = {key: value for key, value in table["evaluation"].items() if key != "figures"}
        local = table["local"]
        table["local"] = {key: value for key, value in local.items() if LATER_OPTIONS.get(key, ()) != value}
        if table["data"].get("normalisation") == "usual":
            table["data"] = {key: value for key, value in table["data"].items() if key != "normalisation"}
        table["execution"] = self.execution.rounding
        return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def hashes(self) -> set[str]:
        """The hash, and those from before the user went on with changed code: checkpoints may have either."""
        earlier = (
            dataclasses.replace(self, code=change["code"], code_changes=self.code_changes[:number])
            for number, change in enumerate(self.code_changes)
        )
        written = (change["run"] for change in self.code_changes if "run" in change)
        return {self.hash, *(run.hash for run in earlier), *written}

    def find_code(self) -> dict[str, str]:
        """Hashes of the user's code that the results and measured figures depend on, by readable names."""
        parts = (self.method, self.data, self.model, self.split, self.augment, self.local.schedule,
                 self.local.optimiser, *self.wire, *self.measure)  # fmt: skip
        return user_code.find(parts)

    def resolve(self, data: Dataset) -> Run:
        """The run with all that its results depend on filled in, from the data or by a rule; refuses a misfit."""
        if not self.augment.is_identity:
            self.augment.check(data.shape)
            _check_augmented(self.augment, data.shape)
        if self.method.output == "personal" and self.evaluation.local_test == "none":
            raise InputError(
                f"{self.method.name} gives personal models only, so it needs local test sets; "
                "set evaluation.local_test (--local-test) to proportional or holdout"
            )
        if self.pool_test and self.evaluation.local_test != "holdout":
            raise InputError("pool_test deals the test samples to the clients; set evaluation.local_test to holdout")
        tested = next((measure.name for measure in self.measure if measure.on_test), None)
        if self.pool_test and tested:
            raise InputError(
                f"measure {tested} looks at the common test set, whose samples pool_test deals to the clients; "
                "leave it out of measure (--measure)"
            )
        if self.init_only and self.init is None:
            raise InputError("init_only (--init-only) says which of the weights of init are taken; give --init, too")
        self.execution.check()
        self.local.check(self.rounds)
        for tracker in self.track:
            tracker.check()
        self._warn_idle()
        clients = self.clients or self.split.fixed_clients(data) or 20
        model = self.model or default_model(data.shape)
        make = functools.cache(lambda: build(model, data.shape, data.num_classes))
        buffers = self.local.buffers or "average"
        with naming(0, "the model", foreign=True):
            execution = rules.fix_execution(
                self.execution,
                build=make,
                shape=data.shape,
                batch=min(self.local.batch, len(data.train)),
                cohort=cohort_size(self.sample, clients),
                stackable=self.execution.executor == "auto" and self._may_be_stacked(),
            )
            policy = self.method.buffer_policy or buffers
            batch = rules.fix_test_batch(self.evaluation.batch, execution, make, data.shape, policy)
        code = self.find_code()
        own: Table = {"code": code, "code_changes": (), "extended": ()}
        own["begun_in"] = str(Path.cwd()) if code or self.plugins else ""
        local = dataclasses.replace(self.local, buffers=buffers)
        tests = dataclasses.replace(self.evaluation, batch=batch)
        return dataclasses.replace(
            self, clients=clients, model=model, execution=execution, evaluation=tests, local=local, **own
        )

    def _warn_idle(self) -> None:
        """Says which options do nothing because of others, as long as it can be told that they were given."""
        policy, evaluation = self.method.buffer_policy, self.evaluation
        if self.local.buffers is not None and policy not in (None, self.local.buffers):
            warn_once(log, f"{self.method.name} keeps BatchNorm's statistics its own way ('{policy}'); "
                      f"local.buffers = {self.local.buffers} does nothing")  # fmt: skip
        if evaluation.validation and self.method.output == "personal":
            warn_once(log, f"evaluation.validation = {evaluation.validation:g} holds out samples that nobody uses: "
                      f"{self.method.name} gives personal models only, which are tested at the clients")  # fmt: skip
        self._warn_of_rates()
        drawn = self.split.draws or evaluation.validation or evaluation.local_test in ("proportional", "holdout")
        if self.split_seed is not None and not drawn:
            why = f"split {self.split.name} draws nothing, and no samples are held out"
            warn_once(log, f"split_seed = {self.split_seed} does nothing: {why}")

    def _warn_of_rates(self) -> None:
        """Says where the learning rate changes nothing, or is never what the run says."""
        schedule = fit_schedule(self.local.chosen_schedule, self.rounds)
        if is_foreign(walk_schedules(schedule)):  # asked round by round
            return
        factors = [read_factor(schedule, done) for done in range(max(self.rounds, 1))]
        if (last := self.local.lr * factors[-1]) < SMALLEST:
            warn_once(log, f"the learning rate falls to {last:g} by the last round, where it changes no weight; take "
                      "a schedule that falls more slowly")  # fmt: skip
        if max(factors) < 1:
            warn_once(log, f"local.schedule = {schedule} gives at most {max(factors):.3g} of local.lr within "
                      f"{self.rounds} rounds; shorten its warm-up to get there")  # fmt: skip

    def _may_be_stacked(self) -> bool:
        """Whether `auto` may choose `stacked`: nothing in the run takes it further from `serial` than usual."""
        check_terms(self.method)
        return self.method.stackable and find_tolerance(self.method, (*self.wire, self.local.optimiser)) <= USUAL

    @property
    def title(self) -> str:
        """A folder's name for this run."""
        return f"{self.method.name}-{self.data.name}-{self.hash}"

    def to_toml(self) -> str:
        """The resolved run as a TOML file; its first line says which run it is, to notice edits."""
        return _FIRST_LINE.format(self.hash) + tomli_w.dumps(self.to_plain())

    def to_plain(self) -> Table:
        """The run as nested tables that `from_table` reads."""
        table = {
            key: value for key, value in to_table(self).items() if key != "name" and (value or key not in RECORDED)
        }
        return {key: _without_name(key, value) for key, value in table.items()}


LATER_OPTIONS: Table = {"schedule": {"name": "constant"}, "optimiser": {"name": "sgd"}, "nesterov": False}
"""Options of local training that there were not always, with what they are without: there a run's hash is as before."""
RECORDED = ("code", "code_changes", "begun_in", "extended")
"""What a run writes down of itself; in a run file it means nothing."""
_FIRST_LINE = "# run {}; to change an option, copy this file and start another run\n"


def _check_augmented(augment: Transform, shape: tuple[int, ...]) -> None:
    """Refuses an augmentation that leaves nothing of most images."""
    side = min(shape[1:], default=0)
    if not isinstance(augment, Augment) or (augment.crop <= side and augment.cutout < 2 * side):
        return
    what = f"crop = {augment.crop}" if augment.crop > side else f"cutout = {augment.cutout}"
    raise InputError(f"{augment}: {what} leaves nothing of most images, which have {side} pixels; lower it")


def read_written_hash(path: Path) -> str | None:
    """The hash that a run.toml had when it was written; None if it does not say."""
    try:
        with path.open(encoding="utf-8") as lines:
            word = lines.readline().removeprefix("# run ").partition(";")[0]
    except (OSError, UnicodeDecodeError) as error:
        let_pass(error)
        return None
    return word if len(word) == 12 and word.isalnum() else None


def cohort_size(share: float, clients: int) -> int:
    """How many of the clients take part in a round."""
    return max(1, int(share * clients + 1e-9))  # 1e-9: 0.29 * 100 is 28.999… in binary


def default_model(shape: tuple[int, ...]) -> Architecture:
    """A small model that fits: an MLP for flat inputs, cnn8 for tiny images, the FedAvg CNN for the rest."""
    if len(shape) != 3:
        return architectures.build("mlp")
    return architectures.build("cnn8" if min(shape[1:]) < 16 else "fedavg_cnn")


SECTIONS: dict[str, type[Component]] = {"local": Local, "evaluation": Evaluation, "execution": Execution}


def _without_name(key: str, value: Any) -> Any:
    """A section is named by its place in the file; a method may be called as a section is."""
    if key in SECTIONS or key == "init":
        return {key: item for key, item in value.items() if key != "name"}
    return value


def from_table(table: Mapping[str, Any], *, fresh: bool = True) -> Run:
    """A run from nested tables; unknown keys are errors that name the nearest ones.

    User code that was edited since it was loaded is loaded anew, unless `fresh` is false.
    """
    if not isinstance(table, Mapping):
        raise InputError(f'a run is a table such as {{"method": "fedavg", "rounds": 3}}, got {table!r}')
    load_plugins(table, fresh=fresh)
    registries: dict[str, Registry[Any]] = component_fields(Run)
    names = [field.name for field in dataclasses.fields(Run)]
    values: Table = {}
    for key, value in table.items():
        if key not in names:
            raise InputError(f"a run has no option '{key}'; {suggest(key, names)}")
        if key in SECTIONS:
            values[key] = _section(key, value)
        elif key == "measure":
            values[key] = read_measures(value)
        elif key == "wire":
            values[key] = read_processors(value)
        elif key == "init":
            values[key] = read_weights(value)
        elif key in ("init_only", "freeze"):
            values[key] = read_patterns(key, value)
        elif key == "track":
            values[key] = read_trackers(value)
        elif key in registries:
            if not isinstance(value, (str, Mapping, Component)):
                raise InputError(
                    f'{key}: expected a name such as "{next(iter(registries[key]))}" or a table, got {value!r}'
                )
            values[key] = registries[key].build(value)
        elif key == "plugins":
            values[key] = tuple(
                str(plugins.find_file(place) or place) if plugins.is_file(place) else place for place in value
            )
        else:
            values[key] = value
    return construct(Run, values)


def find_path(name: str) -> str | None:
    """The path of a section's option of this name."""
    return next((path for path, last in _list_paths().items() if last == name), None)


def _list_paths() -> dict[str, str]:
    return {f"{key}.{field.name}": field.name for key, own in SECTIONS.items() for field in dataclasses.fields(own)}


def suggest(name: str, known: Iterable[str]) -> str:
    """What may be meant by an option that there is not: one of a section, by its path, or one of these."""
    if meant := find_path(name):
        return f'it is {meant}: in Python **{{"{meant}": ...}}, on the command line --set {meant}=...'
    offered = [word for word in known if word not in RECORDED]
    if "." in name:
        return nearest(name, [*offered, *_list_paths()])
    near = difflib.get_close_matches(name, [*offered, *_list_paths().values()], n=3, cutoff=0.6)
    found = [word if word in offered else find_path(word) or word for word in near]
    return f"did you mean {' or '.join(dict.fromkeys(found))}?" if found else nearest(name, offered)


def read_measures(value: Any) -> tuple[Measure, ...]:
    """Measures from text such as `drift,rank(samples=500)`, or a list of texts and tables."""
    return build_all(_read_list("measure", "drift,rank", value))


def read_processors(value: Any) -> tuple[Processor, ...]:
    """Wire processors from text such as `clip(norm=1.0),quantise(bits=8)`, or a list of texts and tables."""
    return tuple(processors.build(spec) for spec in _read_list("wire", "clip,quantise(bits=8)", value))


def read_trackers(value: Any) -> tuple[Tracker, ...]:
    """Trackers from text such as `tensorboard:runs/tb,wandb:mine`, or a list of texts and tables."""
    built = tuple(trackers.build(spec) for spec in _read_list("track", "tensorboard:runs/tb", value))
    names = [str(tracker) for tracker in built]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"track: {twice} is named twice; name it once")
    return built


def _read_list(key: str, example: str, value: Any) -> list[Any]:
    """Components, or what they are built of, one by one."""
    given = split_list(value) if isinstance(value, str) else [value] if isinstance(value, Component) else value
    if not isinstance(given, (list, tuple)):
        raise InputError(f'{key}: expected names such as "{example}" or a list of them, got {value!r}')
    return list(given)


def load_plugins(table: Mapping[str, Any], *, fresh: bool = True) -> None:
    """Imports the files that a run's table names, for what they register; anew if they were edited."""
    paths = table.get("plugins", ())
    if not isinstance(paths, (list, tuple)) or not all(isinstance(path, str) and path for path in paths):
        raise InputError(f'plugins: expected a list of Python files or modules, such as ["mine.py"], got {paths!r}')
    if fresh:
        plugins.forget_edited()
    for path in paths:
        plugins.load_plugin(path)


def _section(key: str, value: Any) -> Component:
    if isinstance(value, SECTIONS[key]):
        return value
    if not isinstance(value, Mapping):
        raise InputError(f"{key}: expected a table of options, got {value!r}")
    value = _split_rate(value) if key == "local" and "lr" in value else value
    known = [field.name for field in dataclasses.fields(SECTIONS[key])]
    for name in value:
        if name not in known:
            raise InputError(f"{key} has no option '{name}'; {nearest(name, known)}")
    kinds = component_fields(SECTIONS[key])
    return construct(SECTIONS[key], {name: kinds[name].build(v) if name in kinds else v for name, v in value.items()})


def _split_rate(table: Mapping[str, Any]) -> Table:
    """The table of local training with a plain rate, and the schedule that was written with it."""
    rate, named = split_rate(table["lr"])
    if named is None:
        return {**table, "lr": rate}
    given = table.get("schedule")
    if given is not None and schedules.build(given) != schedules.build("constant"):
        raise InputError(
            f"local.lr (--lr) = {table['lr']} and local.schedule (--schedule) = {given} both name a schedule; "
            "leave one of them out"
        )
    return {**table, "lr": rate, "schedule": named}


def read_file(path: Path) -> Table:
    """The tables of a TOML run file."""
    try:
        table: Table = tomllib.loads(path.read_text(encoding="utf-8"))
        return table
    except OSError as error:
        let_pass(error)
        raise InputError(
            f"cannot read the run file {path}: {error.strerror or error}; give the path of a TOML file"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not a valid TOML file: {error}; fix it there") from None


def override(table: Mapping[str, Any], path: str, value: Any) -> Table:
    """The table with one value set by its path, such as `method.inner.mu`; text of a component is opened first."""
    result: Table = _copy_tables(dict(table))
    registries = component_fields(Run)
    place: Any = result
    *above, last = path.split(".")
    for depth, key in enumerate(above):
        inside = place.get(key, {})
        if depth == 0 and key in registries and not isinstance(inside, dict):
            inside = to_table(registries[key].build(inside))
        elif depth == 0 and key in registries and not inside and isinstance(getattr(Run(), key), Component):
            inside = to_table(getattr(Run(), key))
        elif isinstance(inside, str):
            inside = parse(inside)
        if not isinstance(inside, dict):
            raise InputError(
                f"cannot set '{path}': '{'.'.join(above[: depth + 1])}' is the value {inside!r}, not a table"
            )
        place[key] = inside
        place = inside
    place[last] = value
    return result


def _copy_tables(value: Any) -> Any:
    """Tables and lists anew, to change them; what is in them stays what it is."""
    if isinstance(value, dict):
        return {key: _copy_tables(each) for key, each in value.items()}
    return [_copy_tables(each) for each in value] if isinstance(value, list) else value


def read_assignment(text: str) -> tuple[str, Any]:
    """`method.mu=0.1` as a path and a typed value; a value that is not TOML is taken as text."""
    path, equals, value = text.partition("=")
    if not equals or not path.strip():
        raise InputError(f"--set expects path=value, such as method.mu=0.1, got '{text}'")
    try:
        return path.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return path.strip(), value.strip()


FLAGS = {
    "method": "method", "data": "data", "model": "model", "split": "split", "clients": "clients", "sample": "sample",
    "rounds": "rounds", "epochs": "local.epochs", "steps": "local.steps", "batch": "local.batch", "lr": "local.lr",
    "lr_decay": "local.lr_decay", "schedule": "local.schedule", "optimiser": "local.optimiser",
    "momentum": "local.momentum", "nesterov": "local.nesterov", "weight_decay": "local.weight_decay",
    "clip": "local.clip",
    "augment": "augment", "buffers": "local.buffers", "dropout": "dropout", "stragglers": "stragglers",
    "straggler_online": "straggler_online", "seed": "seed", "split_seed": "split_seed",
    "eval_every": "evaluation.every", "clients_every": "evaluation.clients_every",
    "local_test": "evaluation.local_test", "validation": "evaluation.validation", "figures": "evaluation.figures",
    "executor": "execution.executor",
    "workers": "execution.workers", "retries": "execution.retries", "address": "execution.address",
    "gpus": "execution.gpus", "checkpoint_every": "execution.checkpoint_every",
    "chunk": "execution.chunk", "compile": "execution.compile", "memory_format": "execution.memory_format",
    "device": "execution.device", "precision": "execution.precision", "measure": "measure",
    "wire": "wire", "track": "track", "init": "init", "init_only": "init_only", "freeze": "freeze",
}  # fmt: skip
"""The short names of options, on the command line and in Python; every other one is set by its path."""
