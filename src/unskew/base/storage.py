"""Groups of tensors as bytes: safetensors, with the order of names kept, so sums stay equal to the last bit."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import safetensors.torch
import torch

from unskew.base.errors import InputError, let_pass
from unskew.base.tree import Groups

_KEY = "unskew"
_KINDS = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


def can_hold(dtype: torch.dtype) -> bool:
    """Whether tensors of this type can be written."""
    return dtype in _KINDS


def encode(groups: Groups, notes: dict[str, Any] | None = None) -> bytes:
    """The bytes of these groups, with a few plain values beside them; equal input gives equal bytes."""
    order = {group: list(tree) for group, tree in groups.items()}
    values = (value.detach() for tree in groups.values() for value in tree.values())
    # one key only: readers need not keep the order of several
    header: dict[str, Any] = {"__metadata__": {_KEY: json.dumps({"order": order, "notes": notes or {}})}}
    flat = list(zip(_list_keys(order), values, strict=True))
    # written here, as safetensors' own writer takes three times as long; wide types first, so that all are aligned
    flat.sort(key=lambda item: (-item[1].element_size(), item[0]))
    parts, end = [b"", b""], 0
    for name, value in flat:
        parts.append(value.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        header[name] = {
            "dtype": _KINDS[value.dtype], "shape": list(value.shape), "data_offsets": [end, end + len(parts[-1])],
        }  # fmt: skip
        end += len(parts[-1])
    parts[1] = json.dumps(header, separators=(",", ":")).encode()
    parts[1] += b" " * (-len(parts[1]) % 8)
    parts[0] = len(parts[1]).to_bytes(8, "little")
    return b"".join(parts)


def decode(data: bytes) -> Groups:
    """The groups that these bytes hold, names in the order they had."""
    tensors = safetensors.torch.load(data)
    order = _header(data)["order"]
    keys = iter(_list_keys(order))
    # copies: torch's own memory is aligned alike everywhere, views into a file are not, and sums may round differently
    return {group: {name: tensors[next(keys)].clone() for name in names} for group, names in order.items()}


def _list_keys(order: dict[str, list[str]]) -> list[str]:
    """Each tensor's name in the file; "a/b" of group "c" after "b" of group "c/a" has a prime to tell them apart."""
    found: dict[str, None] = {}
    for group, names in order.items():
        for name in names:
            key = f"{group}/{name}"
            while key in found:
                key += "'"
            found[key] = None
    return list(found)


def read_notes(data: bytes) -> dict[str, Any]:
    """The plain values beside the groups."""
    found: dict[str, Any] = _header(data)["notes"]
    return found


def _header(data: bytes) -> dict[str, Any]:
    length = int.from_bytes(data[:8], "little")
    header: dict[str, Any] = json.loads(json.loads(data[8 : 8 + length])["__metadata__"][_KEY])
    return header


def write_certified(folder: Path, stem: str, data: bytes, *, sync: bool = True) -> str:
    """Writes a file whose name ends in its own checksum, appearing whole or not at all; gives the name."""
    name = f"{stem}.{hashlib.sha256(data).hexdigest()[:16]}.safetensors"
    write_atomic(folder / name, data, sync=sync)
    return name


def read_certified(path: Path) -> bytes:
    """The bytes of such a file; an error if they do not match its name."""
    try:
        data = path.read_bytes()
    except OSError as error:
        let_pass(error)
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    if hashlib.sha256(data).hexdigest()[:16] != path.name.split(".")[-2]:
        raise InputError(f"{path} is damaged: its checksum does not match its name")
    return data


def write_atomic(path: Path, data: bytes | Callable[[BinaryIO], object], *, sync: bool = True) -> None:
    """Writes bytes, or whatever a function writes, to a new file, syncs it, then renames it to `path`."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with _open_new(part) as file:
            data(file) if callable(data) else file.write(data)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    if sync:
        sync_folder(path.parent)


def _open_new(path: Path) -> BinaryIO:
    try:
        return path.open("wb")
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("wb")


def sync_folder(folder: Path) -> None:
    """Makes a rename in this folder survive a power cut."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
