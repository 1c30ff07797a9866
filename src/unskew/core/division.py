"""Ways to divide a model into a part that travels and a part that stays with the client.

The shared part of a parameter is its first rows (entries along dimension 0, a layer's output channels): all of them,
none, or some. A message says by its shapes what is shared, so only who makes it needs to know the division.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from unskew.base import tree
from unskew.base.errors import InputError
from unskew.base.registry import Component, Registry, param
from unskew.base.tree import Tree
from unskew.core.net import Names

if TYPE_CHECKING:
    from unskew.core.context import Context


class Division(Component):
    """Which rows of each parameter travel; the rest is the client's own."""

    @property
    def by_name(self) -> bool:
        """Whether every parameter is shared or personal as a whole, the same in all rounds."""
        return True

    def rows(self, names: Names, name: str, size: int, round_: int) -> int:
        """How many of a parameter's `size` rows are shared in this round."""
        raise TypeError(f"{type(self).__name__} must define rows(names, name, size, round_)")

    def shared(self, context: Context, params: Tree) -> Tree:
        """The part of the parameters that travels."""
        found: Tree = {}
        for name, value in params.items():
            size = len(value) if value.dim() else 1
            rows = self.rows(context.names, name, size, context.round)
            if rows:
                found[name] = value if rows == size else value[:rows]
        return found

    def check(self, context: Context) -> None:
        """An error where nothing is shared."""
        if not context.drop_fixed(self.shared(context, context.initial["model"])):
            raise InputError(f"division {self} leaves nothing to share that is trained; let some parameters travel")


divisions: Registry[Division] = Registry("division", Division)


@divisions.register("head")
class Head(Division):
    """The body is shared, the head is the client's own."""

    def rows(self, names: Names, name: str, size: int, round_: int) -> int:
        """All or none."""
        return 0 if name.startswith("head.") else size


@divisions.register("layers")
class Layers(Division):
    """Parameters whose names match one of the patterns are the client's own."""

    patterns: tuple[str, ...] = param(
        default=("head.*",), doc="personal parameters, such as 'body.0.*'; '@norm': those of normalisation layers"
    )

    def rows(self, names: Names, name: str, size: int, round_: int) -> int:
        """All or none."""
        return 0 if name in names.match(self.patterns) else size

    def shared(self, context: Context, params: Tree) -> Tree:
        """The parameters that match no pattern."""
        return tree.without(params, context.names.match(self.patterns)) if self.patterns else params

    def check(self, context: Context) -> None:
        """An error where a pattern matches nothing, or everything is personal."""
        for pattern in self.patterns:
            if not context.names.match((pattern,)):
                known = ", ".join(context.names.params[:6])
                raise InputError(f"division: no parameter matches '{pattern}'; the model has {known}, …")
        super().check(context)


@divisions.register("channels")
class Channels(Division):
    """The first output channels of every layer of the body are shared, the rest and the head are the client's own."""

    share: float = param(
        default=0.5, ge=0, lt=1, doc="personal share of each layer's output channels (rho_p)", source="our choice"
    )
    grow: int = param(
        default=0, ge=0, doc="rounds in which that share grows linearly from 0; 0: it is constant", source="our choice"
    )

    @property
    def by_name(self) -> bool:
        """Layers are cut in two, and the cut may move."""
        return False

    def rows(self, names: Names, name: str, size: int, round_: int) -> int:
        """The first 1 - rho_p of a layer's channels, at least one."""
        if name.startswith("head."):
            return 0
        grown = min(1.0, round_ / self.grow) if self.grow else 1.0
        return size - int(self.share * grown * size + 1e-9)  # 1e-9: 0.29 * 100 is 28.999… in binary


def join(received: Tree, own: Tree, names: tuple[str, ...]) -> Tree:
    """The whole model: what was received, and below it the client's own rows."""
    return {name: _put_above(received[name], own, name) if name in received else own[name] for name in names}


def _put_above(part: torch.Tensor, own: Tree, name: str) -> torch.Tensor:
    if name not in own or part.shape == own[name].shape:
        return part
    return torch.cat([part, own[name][len(part) :]])


def pad(part: Tree, like: Tree) -> Tree:
    """The part's rows, and zeros for those that did not travel."""
    return join(part, {name: torch.zeros_like(like[name]) for name in part}, tuple(part))
