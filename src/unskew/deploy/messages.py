"""What travels between server and sites: safetensors with a checked head. Nothing of it is ever unpickled.

Whoever reads a message trusts no byte of it: size, head, names, shapes, types and values are looked at before anything
is done with them, and whatever is wrong is one reason (`Refused`).
"""

from __future__ import annotations

from collections.abc import Container
from typing import Annotated, Any, Literal

import safetensors
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from unskew.base import storage, tree
from unskew.base.errors import one_line
from unskew.base.tree import Groups
from unskew.deploy.channel import LIMIT, Refused

HEAD_LIMIT = 1 << 24
"""Bytes of a message's head: names and shapes of tensors, and a few numbers."""

Count = Annotated[int, Field(ge=0, lt=2**53)]
Text = Annotated[str, Field(max_length=200)]


class Head(BaseModel):
    """What every message says of itself."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    version: Literal[1] = 1
    run: Annotated[str, Field(pattern=r"^[0-9a-z-]{8,64}$")]
    """Which run of which server."""
    round: Count
    client: Count


class Request(Head):
    """The server's: a job for a site."""

    kind: Literal["open", "train", "survey", "personal"]
    about: dict[str, Any] = {}
    """With `open`: the run, and what all sites must know of the data."""


class Answer(Head):
    """The site's."""

    kind: Literal["opened", "done", "failed"]
    asked: Text
    """The digest of the request that it answers."""
    weight: float = 0.0
    num_samples: Count = 0
    num_steps: Count = 0
    seconds: float = 0.0
    diagnostics: dict[Text, float] = {}
    reason: Annotated[str, Field(max_length=2000)] = ""
    """With `failed`: what went wrong, in a line."""


def encode(head: Head, groups: Groups) -> bytes:
    """A message as bytes."""
    return storage.encode(groups, head.model_dump())


def decode_request(data: bytes, limit: int = LIMIT) -> tuple[Request, Groups]:
    """The request that these bytes hold."""
    return _decode(data, Request, limit)


def decode_answer(data: bytes, limit: int = LIMIT) -> tuple[Answer, Groups]:
    """The answer that these bytes hold."""
    return _decode(data, Answer, limit)


def _decode(data: bytes, kind: Any, limit: int) -> tuple[Any, Groups]:
    if not isinstance(data, (bytes, bytearray)):
        raise Refused(f"expected bytes, got {type(data).__name__}")
    data = bytes(data)
    if len(data) > limit:
        raise Refused(f"{len(data):,} bytes, expected at most {limit:,}")
    if len(data) < 8 or not 2 <= int.from_bytes(data[:8], "little") <= min(len(data) - 8, HEAD_LIMIT):
        raise Refused("no message of unskew: it has no head")
    try:
        groups, notes = storage.decode(data), storage.read_notes(data)
    except (
        safetensors.SafetensorError, ValueError, KeyError, TypeError, AttributeError, StopIteration, RuntimeError,
        RecursionError, OverflowError, MemoryError,
    ) as error:  # fmt: skip
        raise Refused(f"no message of unskew: {type(error).__name__}") from None
    try:
        head = kind.model_validate(notes)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise Refused(f"its head is wrong: {where} {one_line(Exception(first['msg']))}"[:300]) from None
    except RecursionError:
        raise Refused("its head is nested too deeply") from None
    if not tree.all_finite(groups):
        spoilt = next(group for group, own in groups.items() if not tree.all_finite({group: own}))
        raise Refused(f"NaN or infinite values in group '{spoilt[:50]}'")
    return head, groups


def check_like(groups: Groups, wanted: Groups, free: Container[str] = ()) -> None:
    """Refuses groups of which one has other names, shapes or types than are known of it.

    `free`: groups that are no trees of the model, whose shapes may change from round to round.
    """
    for group, known in wanted.items():
        found = groups.get(group, {})
        for name in [*known, *found]:
            one, other = found.get(name), known.get(name)
            if group in free and one is not None and other is not None and _is_alike(one, other):
                continue
            if _describe(one) != _describe(other):
                raise Refused(f"{group}/{name[:80]}: expected {_describe(other)}, got {_describe(one)}")


def _is_alike(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and one.dim() == other.dim()


def _describe(value: Tensor | None) -> str:
    return "nothing" if value is None else f"{list(value.shape)} {str(value.dtype).removeprefix('torch.')}"


def empty_like(groups: Groups) -> Groups:
    """The same names, shapes and types without memory: what a message is compared with."""
    return {
        group: {name: torch.empty_like(value, device="meta") for name, value in own.items()}
        for group, own in groups.items()
    }
