"""TensorBoard: a folder of event files for each run, scalars by round, options and figures among its HParams."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unskew.base.registry import param
from unskew.runs.tracking.base import Log, Numbers, TrackedRun, Tracker, need, trackers


@trackers.register("tensorboard")
class TensorBoard(Tracker):
    """Event files that `tensorboard --logdir` shows; numbers in float32, as TensorBoard holds them."""

    logdir: str = param(default="runs/tensorboard", doc="the folder that tensorboard --logdir is given")

    def check(self) -> None:
        """Its package must be there."""
        need("tensorboard", "tensorboard")

    def begin(self, run: TrackedRun) -> Log:
        """A folder of the run's name; one that others use already is left alone."""
        return _Events(Path(run.id) if run.id else self._choose(run.name), run)

    def _choose(self, name: str) -> Path:
        home, number = Path(self.logdir).absolute(), 1
        while (place := home / (name if number == 1 else f"{name}-{number}")).exists():
            number += 1
        return place


class _Events(Log):
    def __init__(self, place: Path, run: TrackedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter

        place.mkdir(parents=True, exist_ok=True)  # here, where it fails in words of the system
        self.id, self._options = str(place), run.options
        self._writer: Any = SummaryWriter(self.id)
        if not run.id:
            lines = "\n".join(f"    {name} = {value}" for name, value in run.options.items())
            self._writer.add_text("options", f"{run.method}, seed {run.seed}, in {run.folder}\n\n{lines}")

    def round(self, number: int, numbers: Numbers) -> None:
        """A scalar for each number."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, number)
        self._writer.flush()

    def end(self, summary: Numbers | None) -> None:
        """The figures beside the options, as HParams."""
        if summary is not None:
            plain = {name: "" if value is None else value for name, value in self._options.items()}
            self._writer.add_hparams(plain, {f"final/{n}": v for n, v in summary.items()}, run_name=".")
        self._writer.close()
