"""The measurements behind the written rules: do channels_last, stacking and smaller test batches pay?

    python -m benchmarks.rules memory-format [--models "cnn8:1x8x8,vgg11:3x32x32"] [--batches 10 32 64] [--repeats 7]
    python -m benchmarks.rules stacked [--models "mlp:64,cnn8:1x8x8"] [--batches 16] [--cohorts 4 10 50] [--repeats 7]
    python -m benchmarks.rules test-batch [--models "resnet18:3x32x32"] [--repeats 3]

One process, one thread, its CPU time, FedAvg on random data. Both ways take turns; each ratio is taken within a turn,
and the median over the turns is shown, with the quartiles. Above 1: channels_last (`stacked`; a test of 1000 samples in
batches by the rule) is faster than contiguous (`serial`; one batch).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import measure
from benchmarks.workloads import Workload
from unskew.base.process import prepare_process
from unskew.base.text import split_list
from unskew.core.device import Precision
from unskew.core.jobs import Executor, Job
from unskew.core.task import Task
from unskew.executors.serial import Serial
from unskew.executors.stacked.executor import Stacked
from unskew.runs import building
from unskew.runs.evaluation import evaluate_global

FORMAT_MODELS = (
    "cnn8:1x8x8,cnn8(norm=batch):1x8x8,cnn8:3x32x32,fedavg_cnn:1x28x28,fedavg_cnn:3x32x32,fedas_cnn:1x28x28,"
    "convnet3:3x32x32,convnet3(width=32):3x32x32,resnet18:3x32x32,mobilenetv2:3x32x32,vgg11:3x32x32,sl_vit:3x32x32"
)
TEST_MODELS = (
    "cnn8:3x32x32,fedavg_cnn:1x28x28,fedavg_cnn:3x32x32,fedas_cnn:3x32x32,convnet3:3x32x32,convnet3(width=32):3x32x32,"
    "mobilenetv2_flfa:3x28x28,mobilenetv2:3x32x32,resnet18:3x32x32,vgg11:3x32x32,sl_vit:3x32x32"
)
STACKED_MODELS = "mlp:64,mlp(hidden=[200]):784,cnn8:1x8x8,fedavg_cnn:1x28x28"
Way = Callable[[], None]


@dataclass(frozen=True)
class Case:
    """One row: a model on inputs of a shape, the batch and the clients of a round."""

    model: str
    shape: tuple[int, ...]
    batch: int
    cohort: int = 1
    precision: Precision = "float32"
    test: int = 10

    def make_task(self, memory_format: str, steps: int) -> Task:
        """A run's fixed part on random data, `steps` full batches a visit."""
        local = {"batch": self.batch, "steps": steps, "lr": 0.01}
        made = Workload(
            "random", "", self.model, self.shape, self.batch * 2, self.test, local, 1, 0, self.cohort, self.cohort
        )
        data = made.dataset()
        config = made.run(data)
        execution = replace(config.execution, memory_format=memory_format, precision=self.precision)
        config = replace(config, execution=execution)
        return building.prepare(config, dataset=data).task

    def make_jobs(self, task: Task) -> list[Job]:
        """The first round's visits."""
        server, cohort = task.method.init(task.server_context(0)), task.sample_cohort(1)
        s = task.server_context(1, cohort, server)
        return [Job("train", 1, client, task.method.download(s, server, client)) for client in cohort]


def compare_formats(case: Case, steps: int) -> tuple[Way, Way]:
    """A visit in each memory format."""
    plain, other = (case.make_task(form, steps) for form in ("contiguous", "channels_last"))
    return _visit_all(Serial(plain), case.make_jobs(plain)), _visit_all(Serial(other), case.make_jobs(other))


def compare_executors(case: Case, steps: int) -> tuple[Way, Way]:
    """A round's visits one by one, and at once."""
    task = case.make_task("contiguous", steps)
    jobs = case.make_jobs(task)
    return _visit_all(Serial(task), jobs), _visit_all(Stacked(task, len(jobs)), jobs)


def compare_test_batches(case: Case, steps: int) -> tuple[Way, Way]:
    """A test of 1000 samples at once, and in batches by the rule."""
    task = replace(case, test=1000).make_task("auto", 1)
    return _test(replace(task, eval_batch=1000)), _test(task)


def _test(task: Task) -> Way:
    def work() -> None:
        evaluate_global(task, Serial(task), task.initial, 1)

    return work


def _visit_all(executor: Executor, jobs: list[Job]) -> Way:
    def work() -> None:
        for _ in executor.run(jobs):
            pass

    return work


def time_turns(plain: Way, other: Way, repeats: int) -> list[float]:
    """Seconds of the plain way over those of the other, turn by turn; the first turn only warms up."""
    ratios = []
    for _ in range(repeats + 1):
        taken = []
        for work in (plain, other):
            began = time.process_time()
            work()
            taken.append(time.process_time() - began)
        ratios.append(taken[0] / taken[1])
    return ratios[1:]


def choose_steps(make: Callable[[Case, int], tuple[Way, Way]], case: Case) -> int:
    """Steps enough for about a second, at least ten, so that what is done once a visit counts little."""
    work = make(case, 2)[0]
    work()
    began = time.process_time()
    work()
    return max(10, min(200, int(0.6 / max(1e-3, time.process_time() - began))))


def list_cases(models: str, batches: list[int], cohorts: list[int], precision: Precision) -> Iterator[Case]:
    """Every model with every batch and cohort."""
    for text in split_list(models):
        model, _, shape = text.rpartition(":")
        for batch in batches:
            for cohort in cohorts:
                yield Case(model, tuple(int(side) for side in shape.split("x")), batch, cohort, precision)


STUDIES = {
    "memory-format": (compare_formats, FORMAT_MODELS, [1]),
    "stacked": (compare_executors, STACKED_MODELS, [4, 10, 50]),
    "test-batch": (compare_test_batches, TEST_MODELS, [1]),
}
"""What is compared, with which networks and cohorts unless the command line says otherwise."""


def main() -> None:
    """Measures and shows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=tuple(STUDIES))
    parser.add_argument("--models")
    parser.add_argument("--batches", type=int, nargs="+", default=[32])
    parser.add_argument("--cohorts", type=int, nargs="+")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path)
    wanted = parser.parse_args()
    make, models, cohorts = STUDIES[wanted.what]
    table, rows = Table("model", "input", "batch", "clients", "ratio", "quartiles"), []
    with prepare_process(1):
        torch.set_num_threads(1)
        chosen = wanted.models or models, wanted.batches, wanted.cohorts or cohorts, wanted.precision
        for case in list_cases(*chosen):
            ratios = time_turns(*make(case, choose_steps(make, case)), wanted.repeats)
            spread = measure.spread(ratios)
            low, high = spread["quartiles"]
            shape = "x".join(str(side) for side in case.shape)
            cells = case.model, shape, str(case.batch), str(case.cohort), f"{spread['median']:.2f}"
            table.add_row(*cells, f"{low:.2f} to {high:.2f}")
            print(*cells, f"{low:.2f} to {high:.2f}", flush=True)
            rows.append({**vars(case), "ratio": spread})
    Console(width=120, markup=False).print(table)
    if wanted.out:
        measure.write_json(wanted.out, {"machine": measure.machine(), "rows": rows})


if __name__ == "__main__":
    main()
