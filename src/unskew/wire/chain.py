"""The wire of a run: its processors in order at the client, in reverse order at the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from unskew.base.errors import InputError
from unskew.base.tree import Groups
from unskew.core.context import ClientContext
from unskew.core.jobs import WIRE
from unskew.core.method import Method
from unskew.wire.base import Processor


@dataclass(frozen=True)
class Chain:
    """Processors, each with the groups that it touches."""

    links: tuple[tuple[Processor, tuple[str, ...]], ...]

    def encode(self, c: ClientContext, groups: Groups, state: Groups) -> tuple[Groups, Groups]:
        """What is sent, and what the client keeps until its next visit."""
        kept: Groups = {}
        with torch.no_grad():
            for processor, touched in self.links:
                own, stream = _pick(groups, touched), f"{WIRE}{processor.name}"
                memory = {name: state[f"{stream}/{name}"] for name in touched if f"{stream}/{name}" in state}
                sent, memory = processor.encode(c, own, memory, stream)
                groups = {**groups, **sent}
                kept |= {f"{stream}/{name}": rest for name, rest in memory.items() if rest}
        return groups, kept

    def decode(self, groups: Groups) -> Groups:
        """What the server reads."""
        for processor, touched in reversed(self.links):
            groups = {**groups, **processor.decode(_pick(groups, touched))}
        return groups


def _pick(groups: Groups, names: tuple[str, ...]) -> Groups:
    return {name: groups[name] for name in names if name in groups}


# ------------------------------------------------------------------------------- what fits to a method


def build_chain(processors: Sequence[Processor], method: Method) -> Chain | None:
    """The wire of a run of this method, None without processors; refuses what does not fit to what it sends."""
    links: list[tuple[Processor, tuple[str, ...]]] = []
    for processor in processors:
        touched = _choose_groups(processor, method)
        for earlier, groups in links:
            _check_order(earlier, processor, [group for group in groups if group in touched])
        links.append((processor, touched))
    return Chain(tuple(links)) if links else None


def _choose_groups(processor: Processor, method: Method) -> tuple[str, ...]:
    """The groups that a processor touches: those it names, or all that are averaged."""
    sent = _find_averaged(method)
    averaged = tuple(group for group, is_averaged in sent.items() if is_averaged)
    if not averaged:
        raise InputError(
            f"wire (--wire): {processor.name} touches what the server averages, and {method.name} sends "
            f"{_list(sent)}, none of it averaged; leave {processor.name} out"
        )
    for group in processor.groups:
        if group not in sent:
            raise InputError(
                f"wire (--wire): {processor.name} names group '{group}', but {method.name} sends {_list(sent)}; "
                f"name some of {_list(averaged)}"
            )
        if group not in averaged:
            raise InputError(
                f"wire (--wire): {processor.name} names group '{group}', which {method.name}'s server does not "
                f"average; name some of {_list(averaged)}"
            )
    return processor.groups or averaged


def _find_averaged(method: Method) -> dict[str, bool]:
    """The groups that a method's clients send, and whether the server averages them."""
    found: dict[str, bool] = {}
    for name, how in method.reducers.items():
        group, reducer = how if isinstance(how, tuple) else (name, how)
        kind: Any = reducer.func if isinstance(reducer, partial) else reducer
        found[group] = found.get(group, False) or kind.averages
    return found


def _check_order(earlier: Processor, later: Processor, both: list[str]) -> None:
    """Refuses a processor that comes too late on groups that an earlier one touches, too."""
    if not both:
        return
    if earlier.name == later.name:
        raise InputError(f"wire (--wire): {later.name} is named twice for {_list(both)}; name it once")
    if earlier.last:
        raise InputError(
            f"wire (--wire): {later.name} follows {earlier.name} on {_list(both)}, and nothing may follow it there; "
            f"name {later.name} before it"
        )


def _list(names: Sequence[str] | dict[str, bool]) -> str:
    return ", ".join(names) or "nothing"
