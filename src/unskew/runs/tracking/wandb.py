"""Weights & Biases: a run of a project, its history by round, options as its config; WANDB_MODE decides where."""

from __future__ import annotations

import secrets

from unskew.base.registry import param
from unskew.runs.tracking.base import Log, Numbers, TrackedRun, Tracker, need, trackers


@trackers.register("wandb")
class WandB(Tracker):
    """Runs in Weights & Biases, grouped by method; offline in the folder wandb/, for `wandb sync`."""

    project: str = param(default="unskew", doc="the project that runs belong to")
    entity: str = param(default="", doc="the user or team; empty: as W&B is set up")

    def check(self) -> None:
        """Its package must be there."""
        need("wandb", "wandb")

    def begin(self, run: TrackedRun) -> Log:
        """A new run of the project, or the one begun before."""
        return _History(self.project, self.entity, run)


class _History(Log):
    def __init__(self, project: str, entity: str, run: TrackedRun) -> None:
        import wandb

        self.id = run.id or secrets.token_hex(4)  # W&B has no name for a run before it begins
        self._run = wandb.init(
            project=project, entity=entity or None, id=self.id, resume="allow", name=run.name, group=run.method[:128],
            tags=[f"seed {run.seed}"], config={**run.options, "folder": str(run.folder or "")},
            # what the run prints is not W&B's, and several runs may follow each other in one process
            settings=wandb.Settings(console="off", silent=True), reinit="create_new",
        )  # fmt: skip

    def round(self, number: int, numbers: Numbers) -> None:
        """A row of its history."""
        self._run.log(numbers, step=number)

    def end(self, summary: Numbers | None) -> None:
        """The figures as its summary."""
        if summary is not None:
            self._run.summary.update({f"final/{name}": value for name, value in summary.items()})
        self._run.finish(exit_code=0 if summary is not None else 1)
