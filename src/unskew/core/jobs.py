"""What travels between the round loop and whoever does a client's work: jobs out, replies back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, Protocol

from unskew.core.tree import Groups

Kind = Literal["train", "survey", "test", "validate", "personal"]
"""`train`: local training; `survey`: statistics before it; `test`: the global model on a part of the test set;
`validate`: on a part of the validation set; `personal`: a client's own model on its own test set."""


@dataclass(frozen=True)
class Job:
    """One piece of work: a message and the client's own state are all it needs beside the client's data."""

    kind: Kind
    round: int
    client: int
    message: Groups
    state: Groups = field(default_factory=dict)
    part: tuple[int, int] = (0, 0)
    """For `test` and `validate`: which samples."""


@dataclass(frozen=True)
class Reply:
    """What came of a job; `state` stays with the client, the rest goes to the server."""

    client: int
    groups: Groups
    state: Groups = field(default_factory=dict)
    weight: float = 0.0
    num_samples: int = 0
    num_steps: int = 0
    seconds: float = 0.0
    diagnostics: dict[str, float] = field(default_factory=dict)


class Executor(Protocol):
    """Runs jobs and gives their replies in the order of the jobs."""

    def run(self, jobs: Iterable[Job]) -> Iterator[Reply]:
        """A reply for each job, in order; a failed client is a ClientError."""

    def close(self) -> None:
        """Ends whatever the executor started."""
