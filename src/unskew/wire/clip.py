"""Clipping: a reply whose tensors together are longer than a limit is shortened to it."""

from __future__ import annotations

import torch

from unskew.base.registry import param
from unskew.base.tree import Groups
from unskew.core.context import ClientContext
from unskew.wire.base import Processor, processors


@processors.register("clip")
class Clip(Processor):
    """All touched groups together have at most this L2 norm; longer ones are scaled down to it."""

    norm: float = param(default=1.0, gt=0, doc="largest L2 norm of what a client sends", source="our choice")

    def encode(self, c: ClientContext, groups: Groups, memory: Groups, stream: str) -> tuple[Groups, Groups]:
        """x min(1, norm / |x|)."""
        floats = [value for own in groups.values() for value in own.values() if value.is_floating_point()]
        if not floats:
            return groups, {}
        # in double precision: squares of large numbers overflow, and a factor of 0 would hide a client that diverged
        length = torch.stack([value.double().square().sum() for value in floats]).sum().sqrt()
        factor = torch.where(length > self.norm, self.norm / length, 1.0)
        return {
            group: {
                name: value * factor.to(value.dtype) if value.is_floating_point() else value
                for name, value in own.items()
            }
            for group, own in groups.items()
        }, {}
