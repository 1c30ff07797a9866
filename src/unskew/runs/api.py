"""The Python interface: the same options as the command line, and objects where the command line has names."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from unskew.base.errors import InputError
from unskew.base.registry import nearest
from unskew.base.text import Table
from unskew.core.method import Method, methods
from unskew.data.dataset import Dataset
from unskew.data.sources import in_memory
from unskew.models.base import Architecture
from unskew.models.user_module import GivenModule
from unskew.runs import comparison, engine
from unskew.runs.config import FLAGS, Run, from_table, override


def run(
    method: str | Method = "fedavg",
    *,
    data: str | Dataset = "digits",
    model: str | nn.Module | None = None,
    head: str = "",
    out: str | Path | None = None,
    data_dir: Path | None = None,
    watch: engine.Watch | None = None,
    **options: Any,
) -> engine.Result:
    """Runs one method; `options` are those of the command line (`split="dirichlet:0.1"`, `clients=20`, `lr=0.05` …).

    A model may be your own `nn.Module` with the name of its last layer as `head`; data may be a `Dataset`.
    """
    config, dataset = _config(data, model, head, options)
    chosen = dataclasses.replace(config, method=methods.build(method))
    return engine.run(chosen, out, data_dir=data_dir, dataset=dataset, watch=watch)


def resume(
    folder: str | Path,
    *,
    data: Dataset | None = None,
    model: nn.Module | None = None,
    head: str = "",
    data_dir: Path | None = None,
    watch: engine.Watch | None = None,
) -> engine.Result:
    """Continues an interrupted run; hand over data and model again if they were Python objects."""
    architecture = GivenModule.of(model, head) if model is not None else None
    return engine.resume(folder, data_dir=data_dir, dataset=data, watch=watch, model=architecture)


def compare(
    methods_: Sequence[str | Method],
    *,
    seeds: int | Sequence[int] = 3,
    out: str | Path,
    data: str | Dataset = "digits",
    model: str | nn.Module | None = None,
    head: str = "",
    data_dir: Path | None = None,
    **options: Any,
) -> list[comparison.CellResult]:
    """Runs each method under each seed on the same federations; finished runs in `out` are read back."""
    config, dataset = _config(data, model, head, options)
    wanted = [methods.build(method) for method in methods_]
    numbers = range(seeds) if isinstance(seeds, int) else seeds
    return comparison.compare(config, wanted, list(numbers), Path(out), data_dir=data_dir, dataset=dataset)


def _config(
    data: str | Dataset, model: str | nn.Module | None, head: str, options: Table
) -> tuple[Run, Dataset | None]:
    table: Table = {
        "data": data
        if isinstance(data, str)
        else in_memory.GivenDataset(kind=data.name, fingerprint=data.fingerprint())
    }
    if isinstance(model, nn.Module):
        table["model"] = GivenModule.of(model, head)
    elif isinstance(model, (str, Architecture)):
        table["model"] = model
    for name, value in options.items():
        if name not in FLAGS:
            raise InputError(f"there is no option '{name}'; {nearest(name, list(FLAGS))}")
        table = override(table, FLAGS[name], value)
    return from_table(table), data if isinstance(data, Dataset) else None
