"""What came of a run: figures, rounds, models."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from unskew.base.display import Drawable
from unskew.base.errors import InputError
from unskew.base.text import count_of
from unskew.base.tree import Groups
from unskew.measures.classification import Confusion, Tested
from unskew.models.base import Model
from unskew.runs.config import Run
from unskew.runs.folder import Row
from unskew.runs.last_test import read_confusion
from unskew.runs.models import Models


@dataclass(frozen=True)
class Result(Drawable):
    """What came of a run."""

    run: Run
    summary: Row
    rounds: list[Row]
    server: Groups
    published: Groups
    """The global model as anyone may have it: groups `model` and `buffers`."""
    folder: Path | None
    _models: Models = field(repr=False)
    _tested: dict[str, Tested] = field(repr=False, default_factory=dict)

    def __repr__(self) -> str:  # that of the fields would be pages of rows and weights
        about = f"{self.run.method} on {self.run.data}, seed {self.run.seed}"
        rounds = count_of(self.summary["rounds"], "round") + ", diverged" * self.diverged
        return f"<result of {about}: accuracy {self.accuracy:.4f} after {rounds}>"

    @property
    def accuracy(self) -> float:
        """The global model's accuracy after the last round; a personal method's pooled accuracy over clients."""
        return float(self.summary["accuracy"]["last"])

    @property
    def diverged(self) -> bool:
        """Whether the run met numbers that are not finite; `summary["diverged_in"]` is the first such round."""
        return bool(self.summary["diverged"])

    def confusion(self, personal: bool = False) -> Confusion:
        """How many samples of each class were taken for each, in the last test; of the models that `accuracy` is of.

        `personal`: of the clients' own models, pooled, where they have some beside the global one.
        """
        key = "personal_figures" if personal else "figures"
        if key in self._tested:
            return self._tested[key].confusion
        if self.folder is None:
            raise InputError(f"{self.run.method.name} has no personal models beside this; leave personal out")
        return read_confusion(self.folder, personal)

    def model(self) -> Model:
        """The final global model, ready to use; refused where every client has a model of its own."""
        return self._models.build_global()

    def client_model(self, client: int) -> Model:
        """The model that this client would use now, ready to use: its own, or the global one if the method has none."""
        return self._models.build_own(client)
