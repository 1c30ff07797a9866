"""What runs on a node of the cluster: a process with the run's task, which does one job after the other."""

from __future__ import annotations

import json
import platform
import warnings
from contextlib import ExitStack
from dataclasses import fields, replace
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from unskew.base.process import keep_freed_memory, prepare_process
from unskew.base.tree import Groups
from unskew.base.user_code import Loaded
from unskew.base.version import __version__
from unskew.core.per_client import MemoryStore
from unskew.core.task import Task
from unskew.data.dataset import Dataset, Samples
from unskew.executors.answers import answer, read_job
from unskew.executors.packing import Layout, pack, unpack

Bytes = NDArray[Any]
"""Tensors in one block, which the object store shares between the processes of a node without a copy."""
_PARTS = ("train", "test", "validation")
_GROUPS = ("groups", "test_groups")


class Shape(NamedTuple):
    """What is to be known of a data set beside its tensors, and where these are in their block."""

    about: dict[str, Any]
    layout: Layout


class Parcel(NamedTuple):
    """A task on its way to a node; its data set's tensors travel beside it, one copy for all actors of a node."""

    task: Task
    data: Shape


def pack_data(data: Dataset) -> tuple[Shape, Bytes]:
    """A data set's tensors in one block, and the rest of it."""
    groups: Groups = {part: {"x": own.x, "y": own.y} for part in _PARTS if (own := getattr(data, part)) is not None}
    groups["groups"] = {name: own for name in _GROUPS if (own := getattr(data, name)) is not None}
    raw, layout = pack(groups)
    fixed = (*_PARTS, *_GROUPS)
    about = {field.name: getattr(data, field.name) for field in fields(data) if field.name not in fixed}
    return Shape(about, layout), raw.numpy()


def unpack_data(shape: Shape, raw: Bytes) -> Dataset:
    """The data set again, in the memory that the processes of a node share."""
    groups = unpack(as_tensor(raw), shape.layout)
    known: dict[str, Any] = {**shape.about, **groups.pop("groups")}
    known.update({part: Samples(own["x"], own["y"]) for part, own in groups.items()})
    return Dataset(**known)


def wrap(task: Task) -> tuple[Parcel, Bytes]:
    """What actors need of a task: not the server's memory, nor observers that look at no client."""
    shape, raw = pack_data(task.federation.dataset)
    nothing: Any = None
    federation = replace(task.federation, dataset=nothing)
    light = replace(task, federation=federation, observers=task.client_observers, server_store=MemoryStore())
    return Parcel(light, shape), raw


def unwrap(parcel: Parcel, raw: Bytes) -> Task:
    """The task again, with its data."""
    data = unpack_data(parcel.data, raw)
    return replace(parcel.task, federation=replace(parcel.task.federation, dataset=data))


def as_tensor(raw: Bytes) -> Tensor:
    """The bytes of an array as a tensor; nobody writes into it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch knows no memory that is read only
        return torch.from_numpy(raw)


def list_versions() -> dict[str, str]:
    """What must be the same on every node for the same bits."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"unskew": __version__, "torch": str(torch.__version__), "Python": python}


class Actor:
    """Does jobs of one run, one at a time, with one thread."""

    def __init__(self, parcel: Parcel, raw: Bytes) -> None:
        keep_freed_memory()
        self._open = ExitStack()  # as long as the process lives
        self._open.enter_context(prepare_process(1))
        self._task, self._loaded = unwrap(parcel, raw), Loaded()
        self._open.enter_context(self._task.device.set_tf32())

    def tell_versions(self) -> dict[str, str]:
        """That it is ready, and with what."""
        return list_versions()

    def work(self, text: str, shared: Bytes | None, own: Bytes, kept: Bytes) -> tuple[str, list[Bytes]]:
        """Does the job of a header; `shared`: what others are sent, too, `own`: what it alone is, `kept`: its state.

        The reply's header and the blocks of its groups and its state.
        """
        header = json.loads(text)
        places, others = header.pop("shared"), unpack(as_tensor(own), header.pop("own"))
        everyones = {} if shared is None else unpack(as_tensor(shared), places)
        message = {
            name: {key: (everyones if key in everyones.get(name, {}) else others)[name][key] for key in keys}
            for name, keys in header.pop("names").items()
        }
        state = unpack(as_tensor(kept), header.pop("kept"))
        blocks: list[Bytes] = []

        def write(groups: Groups) -> Layout:
            raw, layout = pack(groups)
            blocks.append(raw.numpy())
            return layout

        reply = answer(self._task, read_job(header, message, state), write, self._loaded)
        return json.dumps(reply), blocks
