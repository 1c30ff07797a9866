"""Where the clients' work is done, and in which precision: a CPU or a GPU. Messages and replies rest on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, ParamSpec

import torch
from torch import Tensor

from unskew.base.batch import Output
from unskew.base.errors import InputError
from unskew.base.tree import Groups

Precision = Literal["float32", "tf32", "bfloat16"]
"""`tf32`: float32 with TensorFloat-32 products on GPUs that have them; `bfloat16`: autocast forward and backward."""

CPU = torch.device("cpu")
P = ParamSpec("P")


@dataclass(frozen=True)
class Device:
    """A torch device, and the way of tensors to it and back."""

    kind: torch.device = CPU
    precision: Precision = "float32"

    @classmethod
    def from_name(cls, name: str, precision: Precision = "float32") -> Device:
        """`cpu`, `cuda`, `cuda:1`, or `auto`: a GPU if there is one; refuses what this machine does not have."""
        if name == "auto":
            name = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            kind = torch.device(name)
        except RuntimeError:
            raise InputError(f"execution.device: expected cpu, cuda, cuda:0 or auto, got '{name}'") from None
        if kind.type not in ("cpu", "cuda"):
            raise InputError(f"execution.device: expected cpu, cuda, cuda:0 or auto, got '{name}'")
        if kind.type == "cuda" and (not torch.cuda.is_available() or (kind.index or 0) >= torch.cuda.device_count()):
            raise InputError(
                f"execution.device: this machine has {torch.cuda.device_count()} CUDA devices torch can use, "
                f"got '{name}'; use --device cpu"
            )
        return cls(kind, precision)

    @cached_property
    def is_cpu(self) -> bool:
        """Whether nothing needs to be moved."""
        return self.kind.type == "cpu"

    def move(self, value: Tensor) -> Tensor:
        """A tensor on the device; from the CPU through pinned memory, without waiting for the copy."""
        if value.device == self.kind:
            return value
        if value.device.type == "cpu" and self.kind.type == "cuda":
            value = value.pin_memory()
        return value.to(self.kind, non_blocking=True)

    def to_device(self, groups: Groups) -> Groups:
        """Groups on the device."""
        if self.is_cpu:
            return groups
        return {name: {key: self.move(value) for key, value in tree.items()} for name, tree in groups.items()}

    def to_cpu(self, groups: Groups) -> Groups:
        """Groups on the CPU again; this waits for the device, once a visit."""
        if self.is_cpu:
            return groups
        return {name: {key: value.to(CPU) for key, value in tree.items()} for name, tree in groups.items()}

    @contextmanager
    def set_tf32(self) -> Iterator[None]:
        """Lets float32 products use TensorFloat-32, or forbids it: results must not depend on a default."""
        matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        before = matmul.allow_tf32, cudnn.allow_tf32
        matmul.allow_tf32 = cudnn.allow_tf32 = self.precision == "tf32"
        try:
            yield
        finally:
            matmul.allow_tf32, cudnn.allow_tf32 = before

    def cast(self, forward: Callable[P, Output]) -> Callable[P, Output]:
        """The forward pass in this precision; logits and features leave it as float32."""
        if self.precision != "bfloat16":
            return forward

        def in_bfloat16(*args: P.args, **options: P.kwargs) -> Output:
            with torch.autocast(self.kind.type, torch.bfloat16):
                out = forward(*args, **options)
            maps = {name: value.float() for name, value in out.maps.items()}
            return Output(out.logits.float(), out.features.float()).with_maps(maps)

        return in_bfloat16
