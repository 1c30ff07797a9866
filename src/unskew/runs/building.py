"""The parts of a run, made from its configuration: data, partition, model, task, executor."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from unskew.base import seeds
from unskew.base.errors import InputError
from unskew.base.process import count_cores
from unskew.core.device import Device
from unskew.core.jobs import Executor
from unskew.core.net import Net
from unskew.core.profile import ProfiledExecutor
from unskew.core.reducers import check_reducers
from unskew.core.task import Task
from unskew.core.term import check_terms
from unskew.data.dataset import Dataset
from unskew.data.federation import Federation, hold_out_validation, pool_train_and_test
from unskew.data.files.download import Progress
from unskew.data.partition.base import Partition
from unskew.data.partition.saved import load_partition
from unskew.data.sources import load
from unskew.executors.compiled import CompiledStacked
from unskew.executors.pool.executor import Pool
from unskew.executors.serial import Serial
from unskew.executors.stacked.executor import Stacked
from unskew.models.base import Model
from unskew.runs.config import Run, cohort_size
from unskew.wire.chain import Chain, build_chain


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
    data = dataset if dataset is not None else load(config.data, data_dir, download)
    data = pool_train_and_test(data) if config.pool_test else data
    return hold_out_validation(data, config.evaluation.validation, split_seed(config))


def split_seed(config: Run) -> int:
    """The seed of the partition: its own if given, else from the run's."""
    return config.split_seed if config.split_seed is not None else seeds.derive(config.seed, "split") % 2**32


def cut(config: Run, data: Dataset) -> Partition:
    """The partition of a resolved run."""
    assert config.clients is not None
    return config.split.cut(data, config.clients, split_seed(config))


def _load_split(config: Run, data: Dataset, path: Path) -> Partition:
    partition = load_partition(path, data)
    if not partition.fits(data):
        raise InputError(f"{path} was made for other data than '{config.data}' gives now; restore the data files")
    return partition


def make_task(config: Run, data: Dataset, partition: Partition) -> Task:
    """Everything about a resolved run that stays the same from round to round."""
    device = Device.from_name(config.execution.device, config.execution.precision)
    net = Net(build_model(config, data).to(device.kind), config.execution.memory_format == "channels_last")
    params, buffers = (device.to_cpu({"all": tree})["all"] for tree in net.trees())
    method, evaluation = config.method, config.evaluation
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
        lr_decay=config.local.lr_decay,
        buffer_policy=method.buffer_policy or config.local.buffers,
        cohort_size=cohort_size(config.sample, len(partition)),
        dropout=config.dropout,
        stragglers=config.stragglers,
        straggler_online=config.straggler_online,
        eval_batch=evaluation.batch,
        rounds=config.rounds,
        device=device,
        wire=check_method(config),
    )
    for measure in config.measure:
        measure.check(task)
    return task


def check_method(config: Run) -> Chain | None:
    """The run's wire; refuses reducers, terms and wire processors that do not fit to the method."""
    method = config.method
    check_reducers(method.name, {**method.reducers, **method.survey_reducers})
    check_terms(method)
    return build_chain(config.wire, method)


def build_model(config: Run, data: Dataset) -> Model:
    """The initial model of a resolved run; its weights depend on the seed alone."""
    assert config.model is not None
    with seeds.preserve_global_generator():
        seeds.seed_layers(config.seed, "model")
        return config.method.remodel(config.model.build(data.shape, data.num_classes), data.num_classes)


def make_executor(config: Run, task: Task) -> Executor:
    """Who does the clients' work."""
    executor, part = _executor(config, task), "waiting" if config.execution.executor == "pool" else "rest"
    return ProfiledExecutor(executor, task.profile, part) if task.profile else executor


def _executor(config: Run, task: Task) -> Executor:
    if config.execution.executor == "pool":
        return Pool(task, _workers(config, task), config.execution.retries)
    if config.execution.executor == "stacked":
        kind = CompiledStacked if config.execution.compile else Stacked
        return kind(task, config.execution.chunk)
    return Serial(task)


def _workers(config: Run, task: Task) -> int:
    """As many as asked for, else one per core this process may use; not more than ever have work at once."""
    parts = -(-len(task.federation.dataset.test) // task.eval_batch)
    return min(config.execution.workers or count_cores(), max(task.cohort_size, parts))
