"""The wire of a run: its processors in order at the client, in reverse order at the server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from unskew.base import seeds, tree
from unskew.base.errors import InputError
from unskew.base.torch_private import is_batched
from unskew.base.tree import Groups
from unskew.core.checks.faults import Fault
from unskew.core.checks.guard import Guard
from unskew.core.checks.returned import Wrong, as_groups, as_state, describe
from unskew.core.checks.watching import AT_CLIENT, call_watched, hold_visit, is_foreign
from unskew.core.context import ClientContext
from unskew.core.jobs import WIRE
from unskew.core.method import Method
from unskew.wire.base import Processor


@dataclass(frozen=True)
class Chain:
    """Processors, each with the groups that it touches."""

    links: tuple[tuple[Processor, tuple[str, ...]], ...]
    checked: set[str] = field(default_factory=set)
    """Processors whose decoding was found to undo their encoding, in this process."""
    decoded: dict[str, dict[str, str]] = field(default_factory=dict)
    """What processors from outside the package decoded the first reply to: shapes and types."""

    @property
    def is_foreign(self) -> bool:
        """Whether any processor is from outside the package."""
        return is_foreign(processor for processor, _ in self.links)

    def encode(self, c: ClientContext, groups: Groups, state: Groups) -> tuple[Groups, Groups]:
        """What is sent, and what the client keeps until its next visit."""
        kept: Groups = {}
        with torch.no_grad():
            for processor, touched in self.links:
                own, stream = _pick(groups, touched), f"{WIRE}{processor.name}"
                memory = {name: state[f"{stream}/{name}"] for name in touched if f"{stream}/{name}" in state}
                sent, memory = _encode(processor, c, own, memory, stream, deep=processor.name not in self.checked)
                if processor.name not in self.checked or is_foreign([processor]):  # ours do the same every time
                    _check_decoding(processor, own, sent)
                    self.checked.add(processor.name)
                groups = {**groups, **sent}
                kept |= {f"{stream}/{name}": rest for name, rest in memory.items() if rest}
        return groups, kept

    def decode(self, groups: Groups) -> Groups:
        """What the server reads."""
        for processor, touched in reversed(self.links):
            about = f"{processor.name} at the server"
            made = _decode(processor, _pick(groups, touched), deep=about not in self.checked)
            if is_foreign([processor]):
                self._check_alike(processor, made)
            groups = {**groups, **made}
            self.checked.add(about)
        return groups

    def _check_alike(self, processor: Processor, made: Groups) -> None:
        """A fault where a reply is decoded to other names, shapes or types than those before it: they are averaged."""
        found = _describe(_read(processor, as_groups, made, "what is averaged", "decode"))
        known = self.decoded.setdefault(processor.name, found)
        for name in [*known, *found]:
            if known.get(name) != found.get(name):
                raise Fault(processor, "decode", f"must give {name} as {known.get(name, 'nothing')}, as it did for the "
                            f"replies before, got {found.get(name, 'nothing')}")  # fmt: skip


def _encode(
    processor: Processor, c: ClientContext, own: Groups, memory: Groups, stream: str, deep: bool
) -> tuple[Groups, Groups]:
    """What a processor sends and keeps; somebody else's is looked at while it works."""
    if not is_foreign([processor]):
        return processor.encode(c, own, memory, stream)
    guard = Guard(deep, [processor])
    guard.hold("groups", own)
    guard.hold("memory", memory)
    if isinstance(c, ClientContext):  # not somebody's stand-in for one
        hold_visit(guard, c)
    found = call_watched(processor, "encode", processor.encode, (c, own, memory, stream), guard, AT_CLIENT)
    if not isinstance(found, tuple) or len(found) != 2:
        raise Fault(processor, "encode", f"must return what is sent and what is kept, (groups, memory), "
                    f"got {describe(found)}")  # fmt: skip
    sent, kept = (_read(processor, as_groups, found[0], "what is sent"),
                  _read(processor, as_state, found[1], "what is kept"))  # fmt: skip
    alone = not any(is_batched(value) for own in kept.values() for value in own.values())
    return sent, tree.settle(kept) if alone else kept


def _read(processor: Processor, how: Callable[[Any], Groups], value: Any, what: str, slot: str = "encode") -> Groups:
    try:
        return how(value)
    except Wrong as wrong:
        raise Fault(processor, slot, f"(for {what}) {wrong}") from None


def _decode(processor: Processor, own: Groups, deep: bool) -> Groups:
    if not is_foreign([processor]):
        return processor.decode(own)
    guard = Guard(deep, [processor])
    guard.hold("groups", own)
    found: Groups = call_watched(processor, "decode", processor.decode, (own,), guard, "a stream in encode")
    return found


def _check_decoding(processor: Processor, given: Groups, sent: Groups) -> None:
    """Refuses a processor whose `decode` does not give back groups, names, shapes and types that `encode` got."""
    with seeds.preserve_global_generator():  # the visit goes on as if nobody had asked
        made = _decode(processor, sent, deep=True)
    try:
        wanted, found = _describe(given), _describe(as_groups(made))
    except Wrong as wrong:
        raise Fault(processor, "decode", str(wrong)) from None
    for name in [*wanted, *found]:
        if wanted.get(name) != found.get(name):
            raise Fault(processor, "decode", f"must give back what encode got, expected {name} as "
                        f"{wanted.get(name, 'nothing')}, got {found.get(name, 'nothing')}")  # fmt: skip


def _describe(groups: Groups) -> dict[str, str]:
    """Shape and type of every tensor by its name."""
    return {
        f"{group}/{name}": f"{list(value.shape)} {str(value.dtype).removeprefix('torch.')}"
        for group, own in groups.items()
        for name, value in own.items()
    }


def _pick(groups: Groups, names: tuple[str, ...]) -> Groups:
    return {name: groups[name] for name in names if name in groups}


# ------------------------------------------------------------------------------- what fits to a method


def build_chain(processors: Sequence[Processor], method: Method) -> Chain | None:
    """The wire of a run of this method, None without processors; refuses what does not fit to what it sends."""
    links: list[tuple[Processor, tuple[str, ...]]] = []
    for processor in processors:
        kind = type(processor)
        if kind.encode is Processor.encode and kind.decode is Processor.decode:
            raise InputError(f"wire (--wire): {processor.name} does nothing; define encode(c, groups, memory, stream)")
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
