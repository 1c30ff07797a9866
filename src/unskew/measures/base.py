"""Measures: the quantities that papers argue with, recorded beside a run without changing any of its results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from unskew.base import seeds, tree
from unskew.base.errors import InputError
from unskew.base.registry import Component, Registry
from unskew.base.tree import Groups, Tree
from unskew.core.checks.asking import ask_server
from unskew.core.context import ClientContext
from unskew.core.jobs import Job
from unskew.core.observer import Observer
from unskew.core.reducers import Reducer
from unskew.core.task import Task
from unskew.data.batches import LocalData, Pipeline
from unskew.data.dataset import Samples
from unskew.data.transforms import Augment

Row = dict[str, Any]
Figures = dict[str, Any]
"""Name → number, None where it is not defined (0/0); or a list or dictionary of such."""
PROJECTOR = "head.projector"
"""The layer between features and a fixed classifier, in models that have one."""


class Absent(Exception):
    """This run does not have what the measure looks at; the text says why."""


class Measure(Component, Observer):
    """An observer of a run, with figures for its rounds and its summary; each default sees nothing."""

    on_test: ClassVar[bool] = False
    """Whether it looks at the common test set."""
    reading: ClassVar[Mapping[str, str]] = {}
    """How to read its figures, a sentence each."""

    def check(self, task: Task) -> None:
        """Raises an InputError where the measure can never work in this run."""

    def bind(self, task: Task) -> Observer:
        """The observer of this run; another object than the measure where it needs to know the run."""
        return self

    def figures(self, look: Look) -> Figures:
        """What rounds.jsonl holds of it under `measures`; nothing in a round that it skips."""
        return {}

    def summarise(self, rows: list[Row]) -> Figures:
        """What summary.json holds of it under `measures`, besides each figure's last value."""
        return {}


measures: Registry[Measure] = Registry("measure", Measure)


def build_all(given: Any) -> tuple[Measure, ...]:
    """The measures of a list; the same measure twice would write the same figures."""
    built = tuple(measures.build(spec) for spec in given)
    names = [measure.name for measure in built]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise InputError(f"measure: '{twice}' is named twice; name it once, with the options you want")
    return built


@dataclass(frozen=True)
class Look:
    """What a measure may look at after a round."""

    task: Task
    server: Groups
    round: int
    final: bool
    tested: bool
    """Whether the global model is tested after this round."""
    row: Row
    """The round's row, test figures included."""
    clients: list[Row]
    """Rows of the round's visits."""
    earlier: list[Row]
    """Rows of the rounds before."""
    observed: Mapping[str, Reducer] = field(default_factory=dict)
    """The observers' own reducers, with the round's replies in them."""

    def due(self, every: int) -> bool:
        """Whether a measure with this option looks at this round; 0: whenever the global model is tested."""
        return self.final or (self.round % every == 0 if every else self.tested)

    @property
    def replied(self) -> bool:
        """Whether any client's reply was used."""
        return any(row.get("used") for row in self.clients)

    def mean_notes(self, *names: str) -> Figures:
        """The plain means of numbers that the used clients noted; a number that none of them noted is left out."""
        used = [row for row in self.clients if row.get("used")]
        noted = {name: [row[name] for row in used if name in row] for name in names}
        if used and not any(noted.values()):
            raise Absent(f"{self.task.method.name}'s clients make no local steps that it could look at")
        return {name: sum(values) / len(values) for name, values in noted.items() if values}

    def require_global_model(self) -> None:
        """Raises Absent if the method gives personal models only."""
        if self.task.method.output == "personal":
            raise Absent(f"{self.task.method.name} gives personal models only, and it looks at the global one")

    @cached_property
    def published(self) -> Groups:
        """The global model."""
        self.require_global_model()
        s = self.task.server_context(self.round, server=self.server).read_only()
        found: Groups = self.task.device.to_device(ask_server(self.task, "publish", s, self.server))
        return tree.copy_groups(found) if self.task.has_foreign_model else found  # a pass may write into it

    @cached_property
    def context(self) -> ClientContext:
        """The context in which the global model is tested."""
        return self.task.client_context(Job("test", self.round, -1, self.published), choose_test_samples(self.task, 1))

    def features(self, samples: int) -> tuple[Groups, Tensor]:
        """Group `extractor` (and `projector`, if the head has one) with one tree {"": [N, D] float64}, and labels."""
        if samples not in self._known_features:
            self._known_features[samples] = _extract(self.context, self.published["model"], self.task, samples)
        return self._known_features[samples]

    @cached_property
    def _known_features(self) -> dict[int, tuple[Groups, Tensor]]:
        return {}


def has_projector(task: Task) -> bool:
    """Whether the model's head projects the features before it compares them with fixed vectors."""
    return any(name.startswith(f"{PROJECTOR}.") for name in task.net.names.params)


def choose_test_samples(task: Task, samples: int) -> LocalData:
    """At most so many samples of the common test set, not augmented."""
    return choose_samples(task, task.federation.dataset.test, samples)


def choose_samples(task: Task, source: Samples, samples: int) -> LocalData:
    """At most so many of these samples, not augmented: the same ones in every round, chosen by the run's seed."""
    data, count = task.federation.dataset, len(source)
    index = torch.arange(count)
    if samples < count:
        index = torch.randperm(count, generator=seeds.generator(task.seed, "measure"))[:samples].sort().values
    return LocalData(source, index.to(source.y.device), Pipeline(data.num_classes, data.mean, data.std, Augment()))


def _extract(c: ClientContext, params: Tree, task: Task, samples: int) -> tuple[Groups, Tensor]:
    seen: dict[str, list[Tensor]] = {"extractor": [], "projector": []}

    def projector(layer: Any, x: Tensor) -> Tensor:
        projected: Tensor = type(layer).forward(layer, x)
        seen["projector"].append(projected.double())
        return projected

    layers = {PROJECTOR: projector} if has_projector(task) else None
    labels = []
    with torch.no_grad():
        for batch in choose_test_samples(task, samples).passes(task.eval_batch):
            seen["extractor"].append(c.forward(params, batch.x, "eval", layers=layers).features.double())
            labels.append(batch.y)
    return {space: {"": torch.cat(parts).cpu()} for space, parts in seen.items() if parts}, torch.cat(labels).cpu()
