"""Measures: the quantities that papers argue with, recorded beside a run without changing any of its results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from unskew.base import seeds
from unskew.base.errors import InputError
from unskew.base.registry import Component, Registry
from unskew.base.tree import Groups, Tree
from unskew.core.context import ClientContext, Observer
from unskew.core.jobs import Job
from unskew.core.reducers import Reducer, Reducers
from unskew.core.task import Task
from unskew.data.batches import LocalData, Pipeline
from unskew.data.dataset import Samples
from unskew.data.transforms import Augment

Row = dict[str, Any]
Figures = dict[str, Any]
"""Name → number, None where it is not defined (0/0); or a dictionary of such."""
PROJECTOR = "head.projector"
"""The layer between features and a fixed classifier, in models that have one."""


class Absent(Exception):
    """This run does not give what the measure looks at; the text says why."""


class Measure(Component):
    """Looks at a run in up to four places; each default sees nothing."""

    on_test: ClassVar[bool] = False
    """Whether it looks at the common test set."""

    def check(self, task: Task) -> None:
        """An InputError where the measure can never work in this run."""

    def watching(self) -> Reducers:
        """Reducers that see the replies of a round beside the method's own: name → (group, reducer)."""
        return {}

    def observer(self, task: Task) -> Observer | None:
        """Who looks on while clients train, and notes numbers in their rows."""
        return None

    def figures(self, look: Look) -> Figures:
        """What rounds.jsonl holds of it under `measures`; nothing if this round's turn is not due."""
        return {}

    def overall(self, rows: list[Row]) -> Figures:
        """What summary.json holds of it under `measures`."""
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


class Watcher:
    """An observer that sees nothing yet."""

    def step(self, c: ClientContext, params: Tree, batch: Any, grads: Tree) -> None:
        """A local step is about to be made."""

    def trained(self, c: ClientContext, params: Tree) -> None:
        """Local training has ended."""


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
    watched: Mapping[str, Reducer] = field(default_factory=dict)
    """What the measures' own reducers saw, by the name of the measure and of the reducer."""

    def due(self, every: int) -> bool:
        """Whether it is the turn of a measure with this option; 0: whenever the global model is tested."""
        return self.final or (self.round % every == 0 if every else self.tested)

    @property
    def replied(self) -> bool:
        """Whether any client's reply was used."""
        return any(row.get("used") for row in self.clients)

    def mean_of(self, note: str) -> float | None:
        """The plain mean of a number that the used clients noted; None if none did."""
        noted = [row[note] for row in self.clients if row.get("used") and note in row]
        return sum(noted) / len(noted) if noted else None

    @cached_property
    def published(self) -> Groups:
        """The global model."""
        if self.task.method.output == "personal":
            raise Absent(f"{self.task.method.name} gives personal models only, and it looks at the global one")
        s = self.task.server_context(self.round, server=self.server)
        return self.task.device.to_device(self.task.method.publish(s, self.server))

    @cached_property
    def context(self) -> ClientContext:
        """The context in which the global model is tested."""
        return self.task.client_context(Job("test", self.round, -1, self.published), some_test(self.task, 1))

    def features(self, samples: int) -> tuple[Groups, Tensor]:
        """Group `extractor` (and `projector`, if the head has one) with one tree {"": [N, D] float64}, and labels."""
        if samples not in self._known_features:
            self._known_features[samples] = _features(self.context, self.published["model"], self.task, samples)
        return self._known_features[samples]

    @cached_property
    def _known_features(self) -> dict[int, tuple[Groups, Tensor]]:
        return {}


def has_projector(task: Task) -> bool:
    """Whether the model's head projects the features before it compares them with fixed vectors."""
    return any(name.startswith(f"{PROJECTOR}.") for name in task.net.names.params)


def some_test(task: Task, samples: int) -> LocalData:
    """At most so many samples of the common test set: the same ones in every round, chosen by the run's seed."""
    return chosen(task, task.federation.dataset.test, samples)


def chosen(task: Task, source: Samples, samples: int) -> LocalData:
    """At most so many of these samples, not augmented."""
    data, count = task.federation.dataset, len(source)
    index = torch.arange(count)
    if samples < count:
        index = torch.randperm(count, generator=seeds.generator(task.seed, "measure"))[:samples].sort().values
    return LocalData(source, index.to(source.y.device), Pipeline(data.num_classes, data.mean, data.std, Augment()))


def _features(c: ClientContext, params: Tree, task: Task, samples: int) -> tuple[Groups, Tensor]:
    seen: dict[str, list[Tensor]] = {"extractor": [], "projector": []}

    def projector(layer: Any, x: Tensor) -> Tensor:
        projected: Tensor = type(layer).forward(layer, x)
        seen["projector"].append(projected.double())
        return projected

    layers = {PROJECTOR: projector} if has_projector(task) else None
    labels = []
    with torch.no_grad():
        for batch in some_test(task, samples).passes(task.eval_batch):
            seen["extractor"].append(c.forward(params, batch.x, "eval", layers=layers).features.double())
            labels.append(batch.y)
    return {space: {"": torch.cat(parts).cpu()} for space, parts in seen.items() if parts}, torch.cat(labels).cpu()
