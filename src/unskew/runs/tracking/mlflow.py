"""MLflow: a run with parameters, metrics by round and tags, on a server or in an SQLite file."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from unskew.base.registry import param
from unskew.runs.tracking.base import Log, Numbers, TrackedRun, Tracker, need, trackers

LONGEST, MOST_PARAMS, MOST_METRICS = 500, 100, 1000
"""What MLflow takes: characters of a value in every version, parameters and metrics in one call."""


@trackers.register("mlflow")
class MLflow(Tracker):
    """Runs in MLflow: at a tracking URI (http://, sqlite:///, databricks …), or in mlflow.db inside a folder."""

    uri: str = param(default="runs/mlflow", doc="a tracking URI, or a folder for mlflow.db and its artifacts")
    experiment: str = param(default="unskew", doc="the experiment that runs belong to")

    def check(self) -> None:
        """Its package must be there."""
        _load()

    def begin(self, run: TrackedRun) -> Log:
        """A new run of the experiment, or the one begun before."""
        with _one_at_a_time(Path(self.uri)) if self._is_folder else nullcontext():
            return _Metrics(self._connect(), self.experiment, self._artifacts, run)

    @property
    def _is_folder(self) -> bool:
        return "://" not in self.uri and self.uri.partition(":")[0] not in ("databricks", "file", "sqlite")

    @property
    def _artifacts(self) -> str | None:
        return (Path(self.uri).absolute() / "artifacts").as_uri() if self._is_folder else None

    def _connect(self) -> Any:
        uri = self.uri
        if self._is_folder:  # the format of folders alone is no longer kept up by MLflow
            uri = f"sqlite:///{Path(uri).absolute() / 'mlflow.db'}"
        return _load().MlflowClient(tracking_uri=uri)


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Runs side by side wait for each other here: MLflow makes the tables of a new file without looking for others."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # not on Windows
        yield
        return
    with (folder / ".lock").open("w") as file:
        with suppress(OSError):  # a file system without locks
            fcntl.lockf(file, fcntl.LOCK_EX)
        yield


def _load() -> Any:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # nobody asked for it
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")  # else a run waits minutes for a server that is away
    return need("mlflow", "mlflow")


class _Metrics(Log):
    def __init__(self, client: Any, experiment: str, artifacts: str | None, run: TrackedRun) -> None:
        from mlflow.entities import Metric, Param

        self._client, self._metric, self._last = client, Metric, 0
        if run.id:
            self.id = run.id
            client.update_run(run.id, status="RUNNING")
            return
        found = client.get_experiment_by_name(experiment)
        where = found.experiment_id if found else client.create_experiment(experiment, artifact_location=artifacts)
        tags = {"method": run.method, "seed": str(run.seed), "folder": str(run.folder or "")}
        self.id = client.create_run(where, run_name=run.name, tags=tags).info.run_id
        params = [Param(name, str(value)[:LONGEST]) for name, value in run.options.items()]
        for start in range(0, len(params), MOST_PARAMS):
            client.log_batch(self.id, params=params[start : start + MOST_PARAMS])

    def round(self, number: int, numbers: Numbers) -> None:
        """A metric for each number, the round as its step."""
        now, self._last = int(1000 * time.time()), number
        made = [self._metric(name, value, now, number) for name, value in numbers.items()]
        for start in range(0, len(made), MOST_METRICS):
            self._client.log_batch(self.id, metrics=made[start : start + MOST_METRICS])

    def end(self, summary: Numbers | None) -> None:
        """The figures as metrics `final/…`; the run is finished, or killed and waits to be resumed."""
        if summary is not None:
            self.round(self._last, {f"final/{name}": value for name, value in summary.items()})
        self._client.set_terminated(self.id, "KILLED" if summary is None else "FINISHED")
