"""A run in its folder, opened to be used: figures and curves at once, models and predictions when they are asked for.

run = unskew.open("runs/x")
run.summary, run.to_frame()             what it came to
run.model(), run.client(7).model()      networks, ready to use
run.predict(images)                     scores, as the run's own tests make them
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unskew.base.display import Drawable
from unskew.base.errors import InputError
from unskew.base.tree import Groups
from unskew.data.dataset import Dataset, Samples
from unskew.data.files.arrays import to_inputs
from unskew.measures.classification import Confusion
from unskew.models.base import Architecture, Model
from unskew.runs import engine
from unskew.runs.config import Extension, Run, read_file
from unskew.runs.folder import EditedRun, Row, RunFolder
from unskew.runs.last_test import read_confusion
from unskew.runs.models import Models, read_client
from unskew.runs.summary import read_finished
from unskew.runs.weights import Weights


class SavedRun(Drawable):
    """A run in its folder, finished or not."""

    def __init__(
        self,
        path: Path,
        *,
        data_dir: Path | None = None,
        dataset: Dataset | None = None,
        model: Architecture | None = None,
        init: Weights | None = None,
        accept_changed_code: bool = False,
    ) -> None:
        self._folder = RunFolder.at(path)
        self._given: dict[str, Any] = {
            "data_dir": data_dir, "dataset": dataset, "model": model, "init": init,
            "accept_changed_code": accept_changed_code,
        }  # fmt: skip

    def __repr__(self) -> str:
        state = "finished" if self.finished else f"unfinished, {len(self.rounds) - 1} rounds"
        state += ", diverged" * any(row.get("diverged") for row in self.rounds)
        return f"<run {self.path}: {self.config.method} on {self.config.data}, {state}>"

    @property
    def path(self) -> Path:
        """Its folder."""
        return self._folder.path

    @property
    def finished(self) -> bool:
        """Whether all rounds were run."""
        return self._folder.finished

    @cached_property
    def config(self) -> Run:
        """The resolved run; it needs the user's own code, where there is some."""
        return RunFolder.open(self.path)[1]

    @cached_property
    def summary(self) -> Row:
        """The figures of a finished run."""
        if not self.finished:
            raise InputError(f"{self.path} is not finished, so it has no summary; run 'unskew resume {self.path}'")
        return read_finished(self._folder)

    @cached_property
    def rounds(self) -> list[Row]:
        """The row of each round so far, from round 0 on, the initial model."""
        return self._folder.list_rows()

    def to_frame(self) -> Any:
        """The rounds as a pandas frame: a row a round, nested figures as columns such as `personal.mean`."""
        try:
            import pandas as pd
        except ImportError:
            raise InputError("to_frame needs pandas; pip install 'unskew[frames]'") from None
        return pd.json_normalize(self.rounds).set_index("round")

    @property
    def about(self) -> Row:
        """What was run, in a few words; it needs no code of the user's."""
        table = self._table
        wanted = ["method", "data", "model", "split", "clients", "sample", "rounds", "seed"]
        wanted += [key for key in ("init", "init_only", "freeze") if table.get(key)]
        try:
            return {key: _plain(getattr(self.config, key)) for key in wanted}
        except EditedRun:
            raise
        except InputError:  # its code is gone: the summary still says it
            written = self.summary if self.finished else {}
            return {key: written.get(key, _name(table.get(key))) for key in wanted}

    @property
    def extended(self) -> list[Extension]:
        """The shorter runs that it went on from."""
        found: list[Extension] = self._table.get("extended", [])
        return found

    @property
    def output(self) -> str:
        """Which model is the method's product; of a method whose code is gone, as its rows look."""
        try:
            return str(self.config.method.output)
        except InputError:
            return "global" if any("accuracy" in row for row in self.rounds) else "personal"

    @property
    def curve(self) -> list[tuple[int, float]]:
        """(round, accuracy) of the tested rounds: the global model's, or clients' own, pooled."""
        found = ((row["round"], self.read_accuracy(row)) for row in self.rounds)
        return [(number, value) for number, value in found if value is not None]

    def read_accuracy(self, row: Row) -> float | None:
        """The accuracy that a row holds, of the kind that the run is judged by."""
        value = row.get("personal", {}).get("pooled") if self.output == "personal" else row.get("accuracy")
        return None if value is None else float(value)

    def confusion(self, personal: bool = False) -> Confusion:
        """How many samples of each class were taken for each, in the last test; `.per_class` says more of them.

        Of the models that `accuracy` is of; `personal`: of the clients' own, if they have some beside the global one.
        """
        return read_confusion(self.path, personal)

    @property
    def changed(self) -> float:
        """When it last wrote a row, in seconds since 1970."""
        rows = self._folder.place / "rounds.jsonl"
        return (rows if rows.exists() else self._folder.place / "run.toml").stat().st_mtime

    @cached_property
    def _table(self) -> Row:
        return read_file(self.path / "run.toml")

    @property
    def data(self) -> Dataset:
        """The run's data, as it used them."""
        return self._models.task.federation.dataset

    @property
    def published(self) -> Groups:
        """What the server has: groups `model` and `buffers`."""
        return self._models.published

    def model(self) -> Model:
        """The global model after the last round, ready to use; refused where every client has a model of its own."""
        return self._models.build_global()

    def client(self, number: int) -> SavedClient:
        """One of its clients."""
        return SavedClient(self, number)

    def predict(self, images: Any) -> Tensor:
        """Scores [N, classes] by the global model of images (arrays or tensors) as the run's data hold them."""
        return self._models.predict(self._read(images))

    @cached_property
    def _models(self) -> Models:
        return engine.look(self.path, **self._given)

    def _read(self, images: Any) -> Samples:
        """Images of the kind that the run was trained on; others would be scaled in another way."""
        known = self.data.train.x
        shape = tuple(known.shape[1:])
        if isinstance(images, Samples):
            images = images.x
        if np.ma.isMaskedArray(images):
            raise InputError("predict: got a masked array; fill in its values, or drop what is masked")
        x = images.detach() if isinstance(images, Tensor) else np.asarray(images)
        if isinstance(x, Tensor) and (x.device.type == "meta" or x.layout is not torch.strided):
            kind = "on device 'meta', which holds no values" if x.device.type == "meta" else f"of layout {x.layout}"
            raise InputError(f"predict: got a tensor {kind}; make an ordinary one on the CPU")
        if (x.dtype in (torch.bool, np.bool_)) or (isinstance(x, np.ndarray) and x.dtype.kind not in "iuf"):
            raise InputError(f"predict: expected images of numbers, got {str(x.dtype).removeprefix('torch.')}")
        if tuple(x.shape[1:]) != shape and x.ndim == len(shape) + 1:
            x = to_inputs(x.numpy() if isinstance(x, Tensor) else x, "predict")
        if tuple(x.shape[1:]) != shape:
            raise InputError(
                f"predict: expected images of shape [N, {', '.join(map(str, shape))}], got {list(x.shape)}"
            )
        # torch takes the machine's order of bytes alone
        found = x if isinstance(x, Tensor) else torch.from_numpy(np.ascontiguousarray(x, x.dtype.newbyteorder("=")))
        if found.is_floating_point() != known.is_floating_point():
            wanted = "floats, scaled as its samples are" if known.is_floating_point() else "uint8, from 0 to 255"
            raise InputError(f"predict: the run was trained on {wanted}; got {str(found.dtype).removeprefix('torch.')}")
        if not found.is_floating_point() and found.dtype is not torch.uint8:
            found = to_inputs(found.numpy(), "predict")
        if found.is_floating_point() and not torch.isfinite(found).all():
            raise InputError("predict: NaN or infinite values among the images; drop or repair them")
        return Samples(found, torch.zeros(len(found), dtype=torch.int64, device=found.device))


@dataclass(frozen=True)
class SavedClient:
    """A client of a run."""

    run: SavedRun
    number: int

    def model(self) -> Model:
        """The model that this client would use now: its own, or the global one if the method has none."""
        return self.run._models.build_own(self.number)

    def predict(self, images: Any) -> Tensor:
        """Scores [N, classes] by the client's model."""
        return self.run._models.predict(self.run._read(images), self.number)

    def test_samples(self) -> Samples:
        """The samples that the run tests this client on."""
        task = self.run._models.task
        found = task.federation.local_test(read_client(self.number, task.num_clients))
        return found.source.take(found.index)

    @property
    def state(self) -> Groups:
        """What it keeps between its visits."""
        models = self.run._models
        return models.states.get(read_client(self.number, models.task.num_clients))


def find_runs(place: Path) -> list[SavedRun]:
    """The runs in a folder and those inside it, the newest last; the folder may be a run itself."""
    if not place.is_dir():
        raise InputError(f"{place} is no folder; give a run's folder, or one that holds runs")
    found = [SavedRun(file.parent) for file in place.rglob("run.toml")]
    if not found:
        raise InputError(f"there are no runs in {place}; 'unskew run' makes one")
    return sorted(found, key=lambda run: (run.changed, str(run.path)))


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return value if isinstance(value, (int, float, type(None))) else str(value)


def _name(value: Any) -> Any:
    return value.get("name", "?") if isinstance(value, dict) else value
