"""What travels between the round loop and whoever does a client's work: jobs out, replies back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from unskew.base import tree
from unskew.base.tree import Groups

if TYPE_CHECKING:
    from unskew.core.context import ClientContext

Kind = Literal["train", "survey", "test", "validate", "personal"]
"""`train`: local training; `survey`: statistics before it; `test`: the global model on a part of the test set;
`validate`: on a part of the validation set; `personal`: a client's own model on its own test set."""


_NOTHING: Any = MappingProxyType({})
"""An empty mapping that nobody can fill."""


class Job(NamedTuple):
    """One piece of work: a message and the client's own state are all it needs beside the client's data."""

    kind: Kind
    round: int
    client: int
    message: Groups
    state: Groups = _NOTHING
    part: tuple[int, int] = (0, 0)
    """For `test` and `validate`: which samples."""
    size: int = 0
    """How much work it is, in samples: long jobs are best begun first. It changes no result."""
    whole: bool = False
    """For tests: whether they also give the score of every class and what was predicted."""


@dataclass(frozen=True)
class Stack:
    """What clients that worked side by side sent, not yet taken apart: tensors [K, ...]."""

    groups: Groups
    count: int
    """How many clients they are."""
    sound: bool
    """Whether all of it is finite."""

    @cached_property
    def nbytes(self) -> int:
        """Bytes that each client sent."""
        return tree.nbytes(self.groups) // self.count

    @cached_property
    def _parts(self) -> dict[str, dict[str, tuple[Tensor, ...]]]:
        return {group: {name: value.unbind(0) for name, value in own.items()} for group, own in self.groups.items()}

    def take(self, place: int) -> Groups:
        """One client's groups."""
        return {group: {name: parts[place] for name, parts in own.items()} for group, own in self._parts.items()}

    def decode(self, wire: Wire) -> tuple[Stack, list[bool]]:
        """The stack as the server reads it, and for each client whether its part is finite."""
        groups: Groups = torch.func.vmap(wire.decode)(self.groups)
        finite = tree.find_finite(groups, self.count)
        return Stack(groups, self.count, all(finite)), finite


class Reply(NamedTuple):  # made in a fifth of a frozen dataclass's time, which tiny visits feel
    """What came of a job; `state` stays with the client, the rest goes to the server."""

    client: int
    groups: Groups = _NOTHING
    state: Groups = _NOTHING
    weight: float = 0.0
    num_samples: int = 0
    num_steps: int = 0
    seconds: float = 0.0
    diagnostics: Mapping[str, float] = _NOTHING
    profile: Mapping[str, float] = _NOTHING
    """Seconds by part, counted by a worker; see core/profile.py."""
    finite: bool | None = None
    """Whether its groups hold no NaN or infinity, where the executor has looked already."""
    state_finite: bool | None = None
    """The same for its state."""
    stack: Stack | None = None
    """Where its groups are, if they are still together with others'."""
    place: int = 0
    """Which of the stack's clients it is."""
    fault: str = ""
    """Why there is nothing in it that could be used: a site did not answer, or not well."""


WIRE = "wire/"
"""Names of groups that begin so are what the wire keeps at a client, beside the method's own state."""
PREVIOUS = "previous/"
"""Begins the names of groups of a client's state that the visit keeps for terms, unseen by the method."""


class Wire(Protocol):
    """How replies to training travel: encoded at the client, decoded before anything at the server reads them."""

    @property
    def is_foreign(self) -> bool:
        """Whether any of it is from outside the package."""

    def encode(self, c: ClientContext, groups: Groups, state: Groups) -> tuple[Groups, Groups]:
        """What is sent, and what the client keeps of it (names begin with `WIRE`); `state`: kept last time."""

    def decode(self, groups: Groups) -> Groups:
        """What the server reads."""


def split_state(state: Groups, *prefixes: str) -> tuple[Groups, Groups]:
    """A client's state without the groups whose names begin so, and these groups."""
    if not state:
        return state, {}
    kept = {name: group for name, group in state.items() if name.startswith(prefixes)}
    return {name: group for name, group in state.items() if name not in kept} if kept else state, kept


class Executor(Protocol):
    """Runs jobs and gives their replies in the order of the jobs."""

    longest_first: bool
    """Whether it looks at the sizes of jobs, which then must be known."""

    def run(self, jobs: Iterable[Job]) -> Iterator[Reply]:
        """A reply for each job, in order; a failed client is a ClientError."""

    def close(self) -> None:
        """Ends whatever the executor started."""


class StateStore(Protocol):
    """What clients remember between their visits; another one holds what the server remembers of each."""

    latest: int
    """The newest round that any client remembers."""

    def get(self, client: int) -> Groups:
        """The client's state; empty before its first visit."""

    def put(self, client: int, state: Groups, round_: int) -> None:
        """Replaces the client's state after its visit in this round."""
