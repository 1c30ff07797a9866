"""Wire processors: small frozen components that change what a client sends, and change it back at the server.

They never know the method. `encode` runs at the client after `upload`, for one client or for many under `vmap`, so
that it chooses with `torch.where` and draws with `c.draw`; `decode` runs at the server before anything reads the reply.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from unskew.base.registry import Component, Registry, param, validated
from unskew.base.tree import Groups, Tree
from unskew.core.context import ClientContext
from unskew.core.tolerance import USUAL


@validated
class Processor(Component):
    """Encodes groups of a reply at the client and decodes them at the server; the defaults change nothing."""

    groups: tuple[str, ...] = param(default=(), doc="groups of the reply to touch; none named: all that are averaged")

    stacked_tolerance: ClassVar[float] = USUAL
    """How near `stacked` comes to `serial` with it, as a share of the distance moved."""
    last: ClassVar[bool] = False
    """Whether nothing may follow it on the groups that it touches."""

    def encode(self, c: ClientContext, groups: Groups, memory: Groups, stream: str) -> tuple[Groups, Groups]:
        """What is sent instead of these groups, and what the client keeps until its next visit.

        `memory` is what it kept last time, by group. `stream` begins the purposes of what it draws.
        """
        return groups, {}

    def decode(self, groups: Groups) -> Groups:
        """The groups as the server reads them; only shapes and names may decide how."""
        return groups


processors: Registry[Processor] = Registry("wire processor", Processor)


class TensorProcessor(Processor):
    """A processor that takes floating tensors one by one and sends each as several parts.

    A part's name holds the tensor's shape, `body.0.weight [8,1,3,3] codes`: decoding needs nothing else.
    """

    parts: ClassVar[tuple[str, ...]] = ()
    """The last words of the parts' names."""

    def pack(
        self, c: ClientContext, name: str, value: Tensor, memory: Tensor | None, stream: str
    ) -> tuple[Tree, Tensor | None]:
        """The parts of one tensor by their words, and what the client keeps of it; `memory`: what it kept last time."""
        raise TypeError(f"{type(self).__name__} must define pack(c, name, value, memory, stream)")

    def unpack(self, parts: Tree, shape: tuple[int, ...]) -> Tensor:
        """The tensor of this shape that the parts stand for."""
        raise TypeError(f"{type(self).__name__} must define unpack(parts, shape)")

    def encode(self, c: ClientContext, groups: Groups, memory: Groups, stream: str) -> tuple[Groups, Groups]:
        """Every floating tensor in parts; others, and empty ones, travel as they are."""
        sent: Groups = {}
        kept: Groups = {group: dict(own) for group, own in memory.items()}  # a tensor may be absent for a while
        for group, own in groups.items():
            sent[group], before = {}, memory.get(group, {})
            for name, value in own.items():
                if not (value.is_floating_point() and value.numel()):
                    sent[group][name] = value
                    continue
                parts, rest = self.pack(c, name, value, before.get(name), f"{stream}/{group}/{name}")
                sent[group].update({mark(name, value.shape, part): tensor for part, tensor in parts.items()})
                if rest is not None:
                    kept.setdefault(group, {})[name] = rest
        return sent, kept

    def decode(self, groups: Groups) -> Groups:
        """The tensors that the parts stand for."""
        return {group: self._join(own) for group, own in groups.items()}

    def _join(self, own: Tree) -> Tree:
        joined: Tree = {}
        for key, value in own.items():
            name, shape, part = unmark(key)
            if part not in self.parts:
                joined[key] = value
            elif part == self.parts[0]:
                joined[name] = self.unpack({word: own[mark(name, shape, word)] for word in self.parts}, shape)
        return joined


_MARKED = re.compile(r"(.*) \[([\d,]*)\] (\w+)", re.S)


def mark(name: str, shape: Sequence[int], part: str) -> str:
    """The name of a part of a tensor."""
    return f"{name} [{','.join(map(str, shape))}] {part}"


def unmark(key: str) -> tuple[str, tuple[int, ...], str]:
    """The tensor's name and shape, and the part's word; an empty word for a tensor that was left as it is."""
    found = _MARKED.fullmatch(key)
    if found is None:
        return key, (), ""
    return found[1], tuple(int(size) for size in found[2].split(",") if size), found[3]
