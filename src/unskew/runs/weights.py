"""Weights that a run starts from, instead of those that the seed draws; and parameters that stay as they are.

A file is a run's model.safetensors, an exported model, or a state dict that safetensors saved, with the network's own
names. A Python program may hand over such a dict. In a run's hash weights count by content.
"""

from __future__ import annotations

import fnmatch
import hashlib
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from unskew.base import storage
from unskew.base.errors import InputError, let_pass, one_line
from unskew.base.once import warn_once
from unskew.base.registry import Component, construct, param
from unskew.base.text import count_of
from unskew.base.tree import Tree
from unskew.models.base import Model
from unskew.runs.sections import section

log = logging.getLogger(__name__)
GROUPS = ("model/", "buffers/", "constants/")
"""What names begin with in the files of this package."""


class Held(NamedTuple):
    """What a file or a program gives."""

    tensors: Tree
    unused: tuple[str, ...] = ()
    """Those that nobody trained: the personal part at the server of a personal method."""


@section
class Weights(Component):
    """Tensors by the names that a network gives them."""

    path: str = param(default="", doc="the file; empty: a Python program handed them over")
    digest: str = param(default="", doc="a hash of all names, shapes and numbers")

    def __str__(self) -> str:
        """The file, for people."""
        return self.path or "handed over"

    @classmethod
    def of(cls, held: Held, path: str = "") -> Weights:
        """The record of these tensors, which holds them, too."""
        made = cls(path=path, digest=_digest(held.tensors))
        object.__setattr__(made, "_held", held)
        return made

    def read(self) -> Held:
        """The tensors; refuses a file that is not as it was when the run began."""
        held: Held | None = getattr(self, "_held", None)
        if held is None:
            if not self.path:
                raise InputError(
                    "this run's initial weights were handed over by a Python program; go on from Python, and hand them "
                    "over again: init=..."
                )
            held = read_tensors(Path(self.path))
            if _digest(held.tensors) != self.digest:
                raise InputError(
                    f"init: {self.path} holds other weights than the run began with; restore the file, or start "
                    "another run"
                )
            object.__setattr__(self, "_held", held)
        return held


def read_weights(given: Any) -> Weights | None:
    """Weights from a file's path, a state dict, or the record in a run.toml; nothing: as the seed draws them."""
    if given is None or isinstance(given, Weights):
        return given
    if isinstance(given, (str, Path)):
        if not str(given):
            return None
        path = Path(given).absolute()
        return Weights.of(read_tensors(path), str(path))
    if isinstance(given, Mapping) and given.keys() == {"path", "digest"}:
        return construct(Weights, dict(given))
    if isinstance(given, Mapping) and given and all(isinstance(value, Tensor) for value in given.values()):
        return Weights.of(Held({str(name): value.detach().cpu().clone() for name, value in given.items()}))
    raise InputError(f"init: expected a .safetensors file or a dict of tensors, got {type(given).__name__}")


def read_patterns(key: str, given: Any) -> tuple[str, ...]:
    """Patterns of parameters' names from text such as `body.*,head.bias`, or a list of them."""
    listed = given.split(",") if isinstance(given, str) else given
    if not isinstance(listed, (list, tuple)) or not all(isinstance(each, str) for each in listed):
        raise InputError(f'{key}: expected patterns of parameters such as "body.*", got {given!r}')
    return tuple(dict.fromkeys(each.strip() for each in listed if each.strip()))


def read_tensors(path: Path) -> Held:
    """The tensors of a safetensors file under the network's names."""
    try:
        data = path.read_bytes()
        found = safetensors.torch.load(data)
    except OSError as error:
        let_pass(error)
        raise InputError(f"init: cannot read {path}: {error.strerror or error}; give a .safetensors file") from None
    except ValueError as error:  # a zero among the characters
        raise InputError(f"init: expected a .safetensors file, got {str(path)!r}: {error}") from None
    except safetensors.SafetensorError as error:
        raise InputError(
            f"init: {path} is no safetensors file ({one_line(error)}); write one with safetensors.torch.save_file"
        ) from None
    return Held({_strip(name): found[name] for name in sorted(found)}, _find_unused(data))


def _strip(name: str) -> str:
    return next((name.removeprefix(group) for group in GROUPS if name.startswith(group)), name)


def _find_unused(data: bytes) -> tuple[str, ...]:
    try:
        return tuple(storage.read_notes(data).get("unused_parameters", ()))
    except KeyError:  # written by somebody else
        return ()


def _digest(tensors: Tree) -> str:
    made = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        made.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        made.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return made.hexdigest()[:16]


# ----------------------------------------------------------------------------------------- into a network


def load_weights(model: Model, weights: Weights, only: tuple[str, ...]) -> None:
    """Puts the weights into the network, all of them or those whose names match `only`; refuses what does not fit."""
    (held, unused), own = weights.read(), {**dict(model.named_parameters()), **dict(model.named_buffers())}
    known = model.state_dict().keys()
    _check_patterns("init_only (--init-only)", only, own)
    wanted = [name for name in own if not only or _matches(name, only)]
    taken = [name for name in held if not only or _matches(name, only)]
    partly = "" if only else "; take the part that fits with --init-only, such as 'body.*'"
    if missing := [name for name in wanted if name not in held and name in known]:
        raise InputError(
            f"init (--init): {weights} lacks {missing[0]} ({len(missing)} of the network's "
            f"{count_of(len(wanted), 'tensor')}); it holds {_list(held)}{partly}"
        )
    if strange := [name for name in taken if name not in own and name not in known]:
        raise InputError(f"init (--init): {weights} holds {strange[0]}, which the network does not have; it has "
                         f"{_list(own)}{partly}")  # fmt: skip
    if idle := [name for name in unused if name in wanted]:
        warn_once(
            log,
            f"init: {weights} is of a personal method, at whose server nobody trained {idle[0]}"
            f"{' and others' * (len(idle) > 1)}; leave that out with --init-only, or export a client's model",
        )
    for name in wanted:
        if name not in held:  # a constant of the network, which state dicts do not hold
            warn_once(
                log, f"init: {weights} does not hold the network's constant {name}, which is as the seed draws it"
            )
            continue
        mine, theirs = (
            (list(value.shape), str(value.dtype).removeprefix("torch.")) for value in (own[name], held[name])
        )
        if mine != theirs:
            raise InputError(
                f"init (--init): {weights} holds {name} as {theirs[1]} {theirs[0]}, the network has {mine[1]} "
                f"{mine[0]}{partly}"
            )
        if name in known and not torch.isfinite(held[name]).all():  # constants may be: a mask of -inf
            raise InputError(
                f"init (--init): {weights} holds NaN or infinite numbers in {name}; start from weights of a training "
                f"that did not diverge{', or leave it out with --init-only' * (not only)}"
            )
        with torch.no_grad():
            own[name].copy_(held[name])


def freeze(model: nn.Module, patterns: tuple[str, ...]) -> None:
    """Freezes the parameters that match, as if the network itself had."""
    params = dict(model.named_parameters())
    _check_patterns("freeze (--freeze)", patterns, params)
    for name, value in params.items():
        if _matches(name, patterns):
            value.requires_grad_(False)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _check_patterns(what: str, patterns: tuple[str, ...], names: Iterable[str]) -> None:
    known = list(names)
    for pattern in patterns:
        if not fnmatch.filter(known, pattern):
            raise InputError(f"{what}: nothing matches '{pattern}'; the network has {_list(known)}")


def _list(names: Iterable[str]) -> str:
    first, *rest = list(names) or ["nothing"]
    return ", ".join((first, *rest[:4])) + ", …" * (len(rest) > 4)
