"""What a slot may use: everything a client or the server has at hand in one visit or round."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor
from typing_extensions import Self, Unpack

from unskew.base import seeds, tree
from unskew.base.batch import Output, group_batches
from unskew.base.errors import InputError
from unskew.base.settings import LocalSettings
from unskew.base.tree import Groups, Tree
from unskew.core.checks.faults import Fault, title
from unskew.core.net import Forward, Mode, Names, PassOptions
from unskew.core.per_client import PerClient

if TYPE_CHECKING:
    from unskew.base.batch import Batch
    from unskew.core.observer import Observer
    from unskew.core.term import Term
    from unskew.data.batches import LocalData

BufferPolicy = Literal["average", "local", "reset"]
"""BatchNorm's buffers are averaged by the server, stay with the client, or start afresh at every visit."""


class Steps(Protocol):
    """How gradients are taken and steps are made: for one client at a time, or for many side by side."""

    def bind(self, forward: Forward) -> Forward:
        """The forward pass of a visit whose steps these are."""

    def copy(self, params: Tree) -> Tree:
        """A tree whose tensors are free to be changed."""

    def gradient(self, loss: Callable[[Tree], Tensor], params: Tree, names: Iterable[str]) -> tuple[Tree, Tensor]:
        """The gradient of `loss` at `params` with respect to these names, and the loss (detached)."""

    def descend(self, c: Context, params: Tree, gradient: LocalGradient, batches: Iterable[Any]) -> Tree:
        """A copy of `params` after one step of SGD along `gradient(c, params, batch)` for each batch."""

    def fold(self, c: Context, step: Callable[[Groups, Any], Groups], start: Groups, batches: Iterable[Any]) -> Groups:
        """`start` after `step(groups, batch)` for each batch; a client that has no batch left stands still."""


LocalGradient = Callable[[Any, Tree, Any], Tree]
"""`gradient(c, params, batch)`: the direction of a local step; one given to `sgd` may name only some parameters."""


Fixed = Literal["received", "previous"]
"""Models that do not change in a visit."""


STATISTICS = "statistics"
"""The group in which `personalise` hands on BatchNorm statistics that belong to its model: tests then use them."""


class Outcome(NamedTuple):
    """Parameters, and what else was made with them: groups that later slots of the visit find in `c.made`."""

    params: Tree
    made: Groups

    @classmethod
    def of(cls, found: Tree | Outcome, **more: Tree) -> Outcome:
        """What a slot gave (an inner method's, say), with more groups."""
        params, made = found if isinstance(found, Outcome) else (found, {})
        return cls(params, {**made, **more})


TAKEN = frozenset({
    "round", "client", "samples", "steps", "weight", "used", "dropped", "straggler", "share", "bytes_down", "bytes_up",
    "seconds", "accuracy", "test_samples",
})  # fmt: skip
"""Keys of a client's row that are not to be noted under; `train_loss` is noted by who computes the loss."""


def check_note(name: Any, value: Any) -> None:
    """Refuses what cannot be in a client's row, or would hide what is there."""
    if not isinstance(name, str) or name in TAKEN:
        taken = "is taken in a client's row" if name in TAKEN else "is no text"
        raise Fault(None, "", f"notes something under {name!r} (diagnostics.note), which {taken}; choose another name")
    good = value.dim() == 0 and not value.is_complex() if isinstance(value, Tensor) else _is_number(value)
    if not good:
        shown = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else repr(value)[:60]
        raise Fault(None, "", f"notes under '{name}' (diagnostics.note) what is no single number: {shown}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) or (hasattr(value, "item") and getattr(value, "ndim", 1) == 0)


Noter = tuple[Any, str] | None
"""An observer and its hook; None: the method or one of its terms."""


def refuse_shared(owners: dict[str, Noter], name: str, now: Noter) -> None:
    """A fault where two parts note numbers under one name: their mean would be neither's."""
    first = owners.setdefault(name, now)
    if first is now or (first and now and first[0] is now[0]):
        return
    told, other = (now, first) if now else (first, now)
    assert told is not None
    whose = title(*other) if other else "the method (or a term)"
    raise Fault(*told, f"notes something under '{name}' (diagnostics.note), as {whose} does; choose another name")


class Diagnostics:
    """Numbers noted during a visit, and the steps taken; kept as tensors, so that nothing waits for them."""

    noting: Noter = None
    """The observer that is looking on now, and its hook; None: the method or a term is at work."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[Any, int]] = {}
        self.steps = 0

    def make_empty(self) -> Diagnostics:
        """The same kind of diagnostics, with nothing counted yet."""
        return Diagnostics()

    def step(self, batch: Batch) -> None:
        """Counts one step."""
        self.steps += 1

    def note(self, name: str, value: Tensor | float) -> None:
        """Adds one observation to the mean kept under this name."""
        total, count = self._sums.get(name, (None, 0))
        self._sums[name] = (value if total is None else total + value, count + 1)

    def means(self) -> dict[str, float]:
        """The mean of each series."""
        return {name: float(total) / count for name, (total, count) in self._sums.items()}


@dataclass(frozen=True)
class Context:
    """What clients and the server share: passes, gradients, the start of the run, random streams."""

    round: int
    seed: int
    num_classes: int
    settings: LocalSettings
    forward: Forward
    steps: Steps
    names: Names
    trainable: tuple[str, ...]
    initial: Groups
    """The run's initial model and buffers, the same for all: groups `model` and `buffers`."""
    buffer_policy: BufferPolicy
    fresh: Callable[[int], Tree]
    """Parameters drawn anew by the layers' initialisers, from this seed (`seeds.derive(c.seed, purpose)`)."""
    constants: Tree = field(default_factory=dict)
    """Tensors of the model that nothing changes, such as a fixed classifier's vectors."""
    diagnostics: Diagnostics = field(default_factory=Diagnostics)
    observers: tuple[Observer, ...] = ()
    """Called at every step and at the end of training; they note numbers and change nothing."""
    rounds: int = 0
    """How many rounds the run has."""
    guarded: bool = False
    """Whether steps are looked at: code from outside the package runs in them."""
    foreign_model: bool = False
    """Whether layers are from outside the package: their pass may write into the weights, so that who only looks on
    gets a copy of them."""
    closely: bool = False
    """Whether contents are compared, too: in the first visit of a process."""

    def with_fields(self: Self, **changed: Any) -> Self:
        """The same context with other fields: `dataclasses.replace` in a tenth of its time, which tiny visits feel."""
        fields = {**self.__dict__, **changed}
        if len(fields) != len(self.__dict__):
            raise TypeError(f"a context has no field {sorted(changed.keys() - self.__dict__.keys())}")
        made = object.__new__(type(self))
        object.__setattr__(made, "__dict__", fields)
        return made

    @property
    def step(self) -> int:
        """The number of the current step in the visit, from 1; 0 before the first."""
        return self.diagnostics.steps

    def drop_fixed(self, params: Tree) -> Tree:
        """The parameters without those that the network itself froze, which nobody sends again or keeps."""
        return tree.without(params, self.names.fixed) if self.names.fixed else params

    def add_fixed(self, params: Tree) -> Tree:
        """The parameters with those that the network itself froze, as the initial model has them."""
        if not self.names.fixed:
            return params
        own = {**params, **tree.select(self.initial["model"], self.names.fixed)}
        return {name: own[name] for name in self.names.params if name in own}

    def features(self, params: Tree, x: Tensor, mode: Mode = "train") -> Tensor:
        """The body's features of inputs, [B, D]."""
        return self.forward(params, x, mode, part="body").features

    def classify(self, params: Tree, features: Tensor, mode: Mode = "train") -> Tensor:
        """The head's logits of features, [B, C]."""
        return self.forward(params, features, mode, part="head").logits

    def aside(self: Self, **changed: Any) -> Self:
        """The same context with other local settings (`lr=0.01, epochs=1`), whose steps and notes are not counted."""
        settings = replace(self.settings, **changed)
        seeing = tuple(observer for observer in self.observers if observer.asides)
        return self.with_fields(settings=settings, diagnostics=self.diagnostics.make_empty(), observers=seeing)

    def grad(self, loss: Callable[[Tree], Tensor], params: Tree, names: tuple[str, ...] | None = None) -> Tree:
        """The gradient of `loss` at `params` for the trainable parameters, or for `names`."""
        return self.steps.gradient(loss, params, self.trainable if names is None else names)[0]

    def grad_and_value(
        self, loss: Callable[[Tree], Tensor], params: Tree, names: tuple[str, ...] | None = None
    ) -> tuple[Tree, Tensor]:
        """The same with the loss, detached."""
        return self.steps.gradient(loss, params, self.trainable if names is None else names)


@dataclass(frozen=True)
class ClientContext(Context):
    """A client's visit: the message it received, what it remembers, its own data, and its settings."""

    client: int = -1
    message: Groups = field(default_factory=dict)
    state: Groups = field(default_factory=dict)
    buffers: Tree = field(default_factory=dict)
    """The working copy of BatchNorm's statistics; passes in mode `train` update it."""
    data: LocalData = None  # type: ignore[assignment]
    has_batchnorm: bool = False
    received: Groups = field(default_factory=dict)
    """What the client starts from, whole and unchanged by training: `model` (its own part included), `buffers`."""
    previous: Groups = field(default_factory=dict)
    """The client's model after its last visit (at first the initial one), where a term needs it: `model`, `buffers`."""
    terms: tuple[Term, ...] = ()
    """The terms of the local loss: the method's own, the user's and those of wrappers."""
    maps: tuple[str, ...] = ()
    """Layers whose outputs these terms want to see."""
    made: Groups = field(default_factory=dict)
    """What was made in this visit: by `prepare` (`with_made`), and by slots that return an `Outcome`."""
    sent: Groups = field(default_factory=dict)
    """What `upload` gave, for `keep` and `weight`."""

    def with_made(self, **groups: Tree) -> ClientContext:
        """The same visit with something that is made once and used in later slots: `c.made[name]`."""
        return self.with_fields(made={**self.made, **groups})

    def rng(self, purpose: str) -> torch.Generator:
        """A stream of this run, round and client for this purpose."""
        return seeds.generator(self.seed, purpose, self.round, self.client)

    def draw(self, purpose: str, make: Callable[[torch.Generator], Tensor]) -> Tensor:
        """Random numbers of this client, `make(rng)`: the way to draw that also works for many clients at once."""
        return make(self.rng(purpose)).to(self.data.device)

    def draw_part(self, share: float, purpose: str, at_most: int | None = None) -> ClientContext:
        """The same visit whose data are a random part of the client's; positions stay those in the whole."""
        return self.with_fields(data=self.data.draw_part(share, self.rng(purpose), at_most))

    @property
    def counts(self) -> Tensor:
        """Samples of each class at this client, [C] int64."""
        return self.data.counts

    @property
    def num_samples(self) -> Tensor:
        """Training samples of this client; a tensor, because slots may run for many clients at once."""
        return _count(len(self.data))

    @property
    def num_steps(self) -> Tensor:
        """Optimiser steps taken so far in this visit; a tensor for the same reason."""
        return _count(self.diagnostics.steps)

    @property
    def augmented(self) -> bool:
        """Whether a sample looks different each time it is drawn."""
        return self.data.augmented

    def batches(self, epochs: int | None = None, purpose: str = "batches") -> Iterator[Batch]:
        """The visit's training batches: shuffled and augmented from streams that no method can disturb."""
        settings = self.settings if epochs is None else replace(self.settings, epochs=epochs, steps=None)
        order, noise = self.rng(purpose), self.rng(f"{purpose}/augment") if self.augmented else None
        return self.data.batches(settings, order, noise, skip_single=self.has_batchnorm)

    def passes(self, batch: int = 500) -> Iterator[Batch]:
        """All samples once, in order, not augmented: for statistics such as prototypes."""
        return self.data.passes(batch)

    def fold(
        self,
        step: Callable[[Groups, Any], Groups],
        start: Groups,
        *,
        epochs: int | None = None,
        purpose: str = "batches",
        together: int = 1,
    ) -> Groups:
        """A loop of one's own over the visit's batches: `start` after `step(groups, batch)` for each; steps count.

        It holds for many clients at once, where a client whose batches are used up must stand still. With `together`
        above 1 each step gets a tuple of so many batches, as in `sgd`.
        """
        batches: Iterator[Any] = self.batches(epochs, purpose)
        return self.steps.fold(self, step, start, batches if together == 1 else group_batches(batches, together))

    # ------------------------------------------------------------------ what models that stay fixed say of samples

    def teacher(self, batch: Batch) -> Output:
        """What the received model says about a batch, without gradient."""
        return self._see("received", batch)

    def predecessor(self, batch: Batch) -> Output:
        """What the client's model after its last visit says about a batch, for terms that need `previous`."""
        return self._see("previous", batch)

    def with_seen(self, which: Fixed) -> ClientContext:
        """The same visit, in which a fixed model has looked at every sample once; only if that saves work.

        It does not where samples are augmented, or where what a model says of a sample depends on its batch, nor in a
        drawn part, which looks up what the whole visit was taught before.
        """
        by_batch = self.has_batchnorm and (self.buffer_policy == "reset" or not self._fixed(which)["buffers"])
        s = self.settings
        if self.data.is_part or self.augmented or by_batch:
            return self
        if s.steps is not None and s.steps * s.batch < int(self.longest):
            return self
        with torch.no_grad():
            seen = [self._look(which, batch.x) for batch in self.passes()]
        if not seen:
            return self
        logits, features = (torch.cat(parts) for parts in zip(*seen, strict=True))
        return self.with_made(**{f"seen by {which}": {"logits": logits, "features": features}})

    def _see(self, which: Fixed, batch: Batch) -> Output:
        if known := self.made.get(f"seen by {which}"):
            return Output(known["logits"][batch.positions], known["features"][batch.positions])
        with torch.no_grad():
            return Output(*self._look(which, batch.x))

    def _look(self, which: Fixed, x: Tensor) -> tuple[Tensor, Tensor]:
        model = self._fixed(which)
        out = self.forward(model["model"], x, "eval", buffers=model["buffers"])
        return out.logits, out.features

    def _fixed(self, which: Fixed) -> Groups:
        if which == "previous" and not self.previous:
            raise InputError('c.predecessor is for terms that say needs = ("previous",), and no term of this run does')
        return self.received if which == "received" else self.previous

    @property
    def longest(self) -> int:
        """Training samples of this client; of the largest one where many work at once."""
        return len(self.data)

    def with_forward(self, forward: Forward) -> ClientContext:
        """The same visit with another forward pass (a wrapper's way to change how gradients travel)."""
        return self.with_fields(forward=forward)

    def with_buffers(self, buffers: Tree) -> ClientContext:
        """The same visit with BatchNorm statistics of another model, which passes in mode `train` update in a copy."""
        own, plain = self.steps.copy(buffers), self.forward

        def forward(params: Tree, x: Tensor, mode: Mode = "train", **options: Unpack[PassOptions]) -> Output:
            if options.get("buffers") is None:
                options["buffers"] = own
            return plain(params, x, mode, **options)

        return self.with_fields(buffers=own, forward=forward)


@dataclass(frozen=True)
class ServerContext(Context):
    """A round at the server: which clients take part, and how many there are."""

    record: dict[str, Any] = field(default_factory=dict)
    """What the method has to say of the round, plain values: goes into rounds.jsonl under `method`."""
    num_clients: int = 0
    cohort: tuple[int, ...] = ()
    """This round's clients."""
    replied: tuple[int, ...] = ()
    """Those whose replies count, in `update`."""
    buffers: Tree = field(default_factory=dict)
    has_batchnorm: bool = False
    per_client: PerClient = field(default_factory=PerClient)
    """What the server remembers of single clients: `get(client)`, `put(client, groups)`."""
    testing: bool = False
    """Whether the message that `download` makes is for a client's test at the end of the round (0: before the first),
    not for its training."""

    def read_only(self) -> ServerContext:
        """The same round for slots that may not change what the server remembers of single clients."""
        return self.with_fields(per_client=self.per_client.read_only())

    def for_tests(self) -> ServerContext:
        """The end of the same round, where clients are tested and nothing is changed."""
        return self.read_only().with_fields(testing=True)

    def rng(self, purpose: str) -> torch.Generator:
        """A stream of this run and round for this purpose."""
        return seeds.generator(self.seed, f"server/{purpose}", self.round)


def _count(value: int) -> Tensor:
    """A whole number as a tensor without dimensions, float64; made anew, as who gets it may change it."""
    return torch.tensor(float(value), dtype=torch.float64)
