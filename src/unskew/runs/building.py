"""The parts of a run, made from its configuration: data, partition, model, task, executor."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unskew.base import seeds
from unskew.base.errors import InputError
from unskew.base.once import warn_once
from unskew.base.process import count_cores, hold_process
from unskew.base.registry import to_table
from unskew.base.text import count_of
from unskew.base.tree import settle
from unskew.core.checks.declared import check_declarations, check_idle, check_output, check_patterns, warn_silent
from unskew.core.checks.faults import Fault, naming
from unskew.core.checks.guard import Guard
from unskew.core.checks.returned import describe
from unskew.core.checks.watching import is_foreign
from unskew.core.device import Device
from unskew.core.jobs import Executor
from unskew.core.method import Method
from unskew.core.net import Net
from unskew.core.observer import Observer
from unskew.core.profile import ProfiledExecutor
from unskew.core.schedule import fit_schedule
from unskew.core.slots import overrides
from unskew.core.task import Task
from unskew.core.term import check_terms
from unskew.core.wrapper import walk_nested
from unskew.data.dataset import Dataset, warn_unseen
from unskew.data.federation import Federation, hold_out_validation, pool_train_and_test
from unskew.data.files.download import Progress
from unskew.data.partition.base import Partition
from unskew.data.partition.saved import load_partition
from unskew.data.sources import load
from unskew.data.sources.in_memory import GivenDataset
from unskew.data.transforms import Augment
from unskew.executors.compiled import CompiledStacked
from unskew.executors.pool.executor import Pool
from unskew.executors.serial import Serial
from unskew.executors.stacked.executor import Stacked
from unskew.models.base import Model, build
from unskew.models.checks import check_input_stays, check_model, check_module
from unskew.runs.config import Run, cohort_size
from unskew.runs.own_augmentation import try_augmentation
from unskew.runs.weights import freeze, load_weights
from unskew.wire.chain import Chain, build_chain

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared:
    """A run that was checked against its data, and its fixed part: federation, model, method, settings."""

    config: Run
    """The resolved run."""
    task: Task


def prepare(
    config: Run,
    data_dir: Path | None = None,
    dataset: Dataset | None = None,
    download: Progress | None = None,
    saved_split: Path | None = None,
) -> Prepared:
    """Loads the data, resolves the run, deals the data to the clients and builds the model, each once.

    `saved_split`: the file of a partition to use instead of making it again.
    """
    data = prepare_data(config, data_dir, dataset, download)
    return prepare_resolved(config.resolve(data), data, saved_split)


def prepare_resolved(config: Run, data: Dataset, saved_split: Path | None = None) -> Prepared:
    """The same for a run that is resolved, on its data from `prepare_data`."""
    partition = cut(config, data) if saved_split is None else _load_split(config, data, saved_split)
    return Prepared(config, make_task(config, data, partition))


def prepare_data(
    config: Run, data_dir: Path | None = None, dataset: Dataset | None = None, download: Progress | None = None
) -> Dataset:
    """The run's data set, with its validation part held out."""
    with naming(0, "the data set", foreign=True):
        data = dataset if dataset is not None else load(config.data, data_dir, download)
    warn_unseen(data)
    data = pool_train_and_test(data) if config.pool_test else data
    return hold_out_validation(data, config.evaluation.validation, split_seed(config))


def split_seed(config: Run) -> int:
    """The seed of the partition: its own if given, else from the run's."""
    return config.split_seed if config.split_seed is not None else seeds.derive(config.seed, "split") % 2**32


def cut(config: Run, data: Dataset) -> Partition:
    """The partition of a resolved run."""
    assert config.clients is not None
    seed, clients = split_seed(config), config.clients
    with naming(0, "the split", foreign=True):
        if not is_foreign([config.split]):
            return _cut(config, data, seed)
        before = replace(data).fingerprint()  # of a copy, which has not remembered one
        partition = _cut(config, data, seed)
        _check_split(config.split.name, clients, partition, _cut(config, data, seed))
        if replace(data).fingerprint() != before:
            raise Fault(config.split, "assign", "changes the data set in place; a split only says who holds what")
    return partition


def _cut(config: Run, data: Dataset, seed: int) -> Partition:
    """What the split says; what it draws from a global generator is the same each time."""
    assert config.clients is not None
    with seeds.seed_everything(seed, "split"):
        return config.split.cut(data, config.clients, seed)


def _check_split(name: str, clients: int, partition: Partition, again: Partition) -> None:
    """Refuses a split of another number of clients, or one that would give every method another federation."""
    if len(partition) != clients:
        raise InputError(
            f"split {name} must give {clients} sizes, one for each client, got {len(partition)}; a split that decides "
            "the number itself defines fixed_clients(dataset)"
        )
    if partition.hash != again.hash:
        raise InputError(
            f"split {name} gives something else when it is asked again; draw from the rng that it is given"
        )


def _load_split(config: Run, data: Dataset, path: Path) -> Partition:
    partition = load_partition(path, data)
    if not partition.fits(data):
        if isinstance(config.data, GivenDataset):
            raise InputError(
                f"{path} was made for other data than those handed over as data '{config.data.kind}'; hand over the "
                "Dataset that the run began with, with the same values"
            )
        raise InputError(f"{path} was made for other data than '{config.data}' gives now; restore the data files")
    origin = to_table(config.split), split_seed(config), config.clients
    if config.split.name != "file" and (partition.split, partition.seed, len(partition)) != origin:
        raise InputError(f"{path} is of another split, seed or number of clients than run.toml says; restore either")
    return partition


def make_task(config: Run, data: Dataset, partition: Partition) -> Task:
    """Everything about a resolved run that stays the same from round to round."""
    if not config.evaluation.batch:
        raise InputError("evaluation.batch = 0 leaves the test batch to a rule: resolve the run first, or give it")
    wire = check_method(config)
    device = Device.from_name(config.execution.device, config.execution.precision)
    model = build_model(config, data)
    _check_model(config, data, model)
    net = Net(model.to(device.kind), config.execution.memory_format == "channels_last")
    params, buffers = (device.to_cpu({"all": tree})["all"] for tree in net.trees())
    if is_foreign(model.modules()):  # whose tensors may have any order in memory, which no checkpoint keeps
        params, buffers = settle({"": params})[""], settle({"": buffers})[""]
    method, evaluation = config.method, config.evaluation
    check_patterns(method, net.names)
    if net.has_batchnorm and config.local.batch == 1:
        raise InputError(
            "local.batch = 1 with BatchNorm would train nobody: one sample has no statistics, and such batches are "
            "skipped; take at least 2 (--batch 2), or another normalisation such as norm=group"
        )
    try_augmentation(config.augment, data, config.seed)
    if wire is not None and set(net.names.params) <= {*net.names.match(method.personal), *net.names.fixed}:
        raise InputError(
            f"wire (--wire): {method.name} sends nothing that {config.wire[0].name} could touch: all parameters stay "
            "with the client; leave it out"
        )
    task = Task(
        method=method,
        federation=Federation(
            data.to(device.kind),
            partition,
            config.augment,
            evaluation.local_test,
            evaluation.holdout,
            seed=split_seed(config),
        ),
        net=net,
        initial={"model": params, "buffers": buffers},
        seed=config.seed,
        local=config.local.settings(),
        schedule=fit_schedule(config.local.chosen_schedule, config.rounds),
        buffer_policy=method.buffer_policy or config.local.buffers or "average",
        cohort_size=cohort_size(config.sample, len(partition)),
        dropout=config.dropout,
        stragglers=config.stragglers,
        straggler_online=config.straggler_online,
        eval_batch=evaluation.batch,
        rounds=config.rounds,
        device=device,
        wire=wire,
    )
    _warn_idle_options(config, net)
    if config.stragglers == 1 and not config.straggler_online:
        log.warning(
            "all clients are stragglers that are never online (stragglers = 1, straggler_online = 0); one of the "
            "sampled clients takes part in each round all the same"
        )
    if not task.trainable:
        raise InputError(
            f"model {config.model} with {method.name} has nothing to train: all of its {len(params)} parameters are "
            "frozen; leave requires_grad=True on some, or freeze less (--freeze)"
        )
    with naming(0, "a measure", foreign=True):
        for measure in config.measure:
            measure.check(task)
            if is_foreign([measure]) and not isinstance(bound := measure.bind(task), Observer):
                raise InputError(f"measure {measure.name}.bind must return an Observer, got {describe(bound)}")
    return task


def _warn_idle_options(config: Run, net: Net) -> None:
    """Says which options do nothing because of others, or of the method."""
    idle = [path for path in config.method.ignores if _differs(config, path, "ignores")]
    if idle:
        warn_once(log, f"{config.method.name} does not use {', '.join(idle)}, which the run sets; see its own options")
    buffers = config.local.buffers
    if buffers not in (None, "average") and not (net.names.buffers or config.method.buffer_policy):
        warn_once(log, f"local.buffers = {buffers} does nothing: the network keeps no statistics")
    local, execution = config.local, config.execution
    if local.steps is not None and local.epochs != type(local)().epochs:
        warn_once(
            log, f"local.steps = {local.steps} takes the place of epochs; local.epochs = {local.epochs} does nothing"
        )
    assert config.clients is not None
    if config.stragglers and not int(config.stragglers * config.clients + 1e-9):
        warn_once(
            log, f"stragglers = {config.stragglers:g} of {config.clients} clients are none; there are no stragglers"
        )
    if execution.precision == "tf32" and execution.device.startswith("cpu"):
        warn_once(log, "execution.precision = tf32 is for GPUs and does nothing on the CPU")
    if execution.memory_format == "channels_last" and not any(isinstance(m, nn.Conv2d) for m in net.module.modules()):
        warn_once(log, "execution.memory_format = channels_last does nothing: the network has no convolutions")
    augment = config.augment
    if isinstance(augment, Augment) and augment.pad_mode != type(augment)().pad_mode and not augment.crop:
        warn_once(log, f"augment.pad_mode = {augment.pad_mode} does nothing without crop")
    if config.evaluation.clients_every and config.evaluation.local_test == "none":
        warn_once(log, "evaluation.clients_every does nothing with local_test = none: clients have no test sets")
    _warn_few_tests(config)
    if not config.stragglers and config.straggler_online != Run().straggler_online:
        log.warning("straggler_online = %g does nothing without stragglers", config.straggler_online)
    evaluation = config.evaluation
    if evaluation.local_test != "holdout" and evaluation.holdout != type(evaluation)().holdout:
        log.warning(
            "evaluation.holdout = %g is for local_test = holdout and does nothing with local_test = %s",
            evaluation.holdout, evaluation.local_test,
        )  # fmt: skip


def _warn_few_tests(config: Run) -> None:
    """Says where fewer rounds are tested than options count on."""
    evaluation, rounds = config.evaluation, config.rounds
    if evaluation.clients_every > rounds:
        warn_once(
            log,
            f"evaluation.clients_every = {evaluation.clients_every} is more than the {count_of(rounds, 'round')}: "
            "clients are tested after the last one",
        )
    tests = -(-rounds // evaluation.every)
    if evaluation.last_k != type(evaluation)().last_k and evaluation.last_k > tests:
        warn_once(
            log,
            f"evaluation.last_k = {evaluation.last_k} is more than the {count_of(tests, 'test')}: "
            f"last_{evaluation.last_k}_mean is over those",
        )


def _differs(config: Run, path: str, declared: str) -> bool:
    """Whether the run sets what a method declares something about."""
    section, _, name = path.rpartition(".")
    chosen: Any = getattr(config, section, None) if section else config
    if not hasattr(chosen, name):
        raise InputError(
            f"{config.method.name}.{declared} names '{path}', which no run has; write one such as local.lr"
        )
    return bool(getattr(chosen, name) != getattr(type(chosen)(), name))


def check_method(config: Run) -> Chain | None:
    """The run's wire; refuses declarations, terms and wire processors that do not fit to the method."""
    method = config.method
    for nested in walk_nested(method):
        check_declarations(nested)
        check_idle(nested)
    check_output(method)
    warn_silent(method)
    for nested in reversed(list(walk_nested(method))):  # a wrapper repeats what the method inside says
        _refuse_settings(config, nested)
    check_terms(method)
    return build_chain(config.wire, method)


def _refuse_settings(config: Run, method: Method) -> None:
    """An error where the run sets what the method's mathematics does not allow."""
    for path, why in method.refuses.items():
        if _differs(config, path, "refuses"):
            section, _, name = path.rpartition(".")
            value = getattr(getattr(config, section) if section else config, name)
            shown = str(value).lower() if isinstance(value, bool) else value
            raise InputError(f"{method.name} does not go with {path} = {shown}: {why}; leave it out")


def build_model(config: Run, data: Dataset) -> Model:
    """The initial model of a resolved run; its weights depend on the seed alone, or are those of `init`."""
    assert config.model is not None
    number, parts = seeds.derive(config.seed, "model"), list(walk_nested(config.method))
    guard = Guard(parts=parts, streams=False)
    with (
        hold_process(), naming(0, "the model", foreign=True), seeds.seed_everything(config.seed, "model"),
        seeds.drawing_weights(number, reseeds=config.model.is_foreign or is_foreign(parts)),
    ):  # fmt: skip
        model: object = config.method.remodel(build(config.model, data.shape, data.num_classes), data.num_classes)
    if not isinstance(model, Model):
        raise InputError(f"{config.method.name}.remodel must return a Model(body, head), got {describe(model)}")
    if changed := guard.find_change():
        raise InputError(f"{config.method.name}.remodel changes {changed}; let it change nothing but the network")
    if config.init is not None:
        load_weights(model, config.init, config.init_only)
    freeze(model, config.freeze)
    return model


def _check_model(config: Run, data: Dataset, model: Model) -> None:
    """Refuses a user's network that is not the same again, and yet another module: each run begins with its own."""
    method, architecture = config.method, config.model
    assert architecture is not None
    theirs = overrides(method, "remodel") and is_foreign(walk_nested(method))
    if not (architecture.is_foreign or theirs):
        return
    label = f"{method.name}.remodel" if theirs and not architecture.is_foreign else architecture.label
    check_input_stays(label, model, data.shape, max(1, min(config.local.batch, len(data.train))))
    if theirs:
        # a rule of the method's own may read other outputs than one score a class
        reads_otherwise = any(overrides(method, slot) for slot in ("criterion", "loss", "gradient", "predict"))
        _check_remodelled(f"{method.name}.remodel", model, data, reads_otherwise)
    again = build_model(config, data)
    known = {id(value) for value in model.parameters()}
    if any(id(value) in known for value in again.parameters()):
        raise InputError(f"{label} must build a new module each time, and gives the same one again; make it inside")
    before, now = model.state_dict(), again.state_dict()
    names = before.keys() ^ now.keys()
    names |= {name for name in before.keys() & now.keys() if _differ(before[name], now[name])}
    if names:
        raise InputError(
            f"{label} gives other weights when it is asked again ('{min(names)}' differs); draw them with torch, whose "
            "generator is seeded"
        )


def _check_remodelled(label: str, model: Model, data: Dataset, reads_otherwise: bool) -> None:
    """What holds for a user's network holds for what a user's method makes of one."""
    if reads_otherwise:
        check_module(label, model)
    else:
        check_model(label, model, data.shape, data.num_classes)


def _differ(one: Any, other: Any) -> bool:
    return isinstance(one, Tensor) and (one.shape != other.shape or not torch.equal(one, other))


def make_executor(config: Run, task: Task) -> Executor:
    """Who does the clients' work."""
    executor, part = _executor(config, task), "waiting" if config.execution.executor in ("pool", "ray") else "rest"
    return ProfiledExecutor(executor, task.profile, part) if task.profile else executor


def _executor(config: Run, task: Task) -> Executor:
    if config.execution.executor == "pool":
        return Pool(task, _workers(config, task), config.execution.retries)
    if config.execution.executor == "ray":
        from unskew.executors.ray.executor import OnRay  # an extra: the core runs without it

        chosen = config.execution
        return OnRay(task, chosen.workers, _most_at_once(task), chosen.retries, chosen.address, chosen.gpus)
    if config.execution.executor == "stacked":
        kind = CompiledStacked if config.execution.compile else Stacked
        return kind(task, config.execution.chunk)
    return Serial(task)


def _workers(config: Run, task: Task) -> int:
    """As many as asked for, else one per core this process may use; not more than ever have work at once."""
    return min(config.execution.workers or count_cores(), _most_at_once(task))


def _most_at_once(task: Task) -> int:
    """How many jobs there ever are at once: clients of a round, parts of a test."""
    return max(task.cohort_size, -(-len(task.federation.dataset.test) // task.test_part))
