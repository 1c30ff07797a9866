"""The server's app: our own loop over Flower's grid. A run that was stopped goes on from its checkpoint."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from unskew.base.errors import InputError
from unskew.core.jobs import Executor
from unskew.core.task import Task
from unskew.data.dataset import Dataset
from unskew.data.sources import load
from unskew.data.sources.base import sources
from unskew.deploy.flower.transport import OverFlower
from unskew.deploy.folder import DeployFolder, Deployment
from unskew.deploy.server import OverSites, Terms, prepare_for_sites
from unskew.runs import engine
from unskew.runs.config import Run, from_table, read_file

log = logging.getLogger(__name__)
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Plays the run of a deployment's folder; what went wrong is one line in server/failed."""
    folder = DeployFolder(Path(str(context.run_config["folder"])))
    failed = folder.server / "failed"
    failed.unlink(missing_ok=True)
    try:
        play(grid, folder, str(context.run_config["run"]), bool(context.run_config["proceed"]))
    except InputError as error:
        failed.write_text(f"{error}\n", encoding="utf-8")
        raise


def play(grid: Grid, folder: DeployFolder, run: str, proceed: bool) -> None:
    """The whole run, from its beginning or from its newest checkpoint."""
    about = folder.read()
    prepared = prepare_for_sites(from_table(read_file(folder.run_file)), load_test(about), len(about.sites))
    known = json.loads(folder.nodes_file.read_text()) if folder.nodes_file.exists() else {}
    transport = OverFlower(grid, about.sites, known, about.round_timeout, about.join_timeout)

    def make(config: Run, task: Task) -> Executor:
        terms = Terms(min_replies=about.min_replies, limit=about.limit)
        return OverSites(config, task, run, transport, about.sites, terms)

    if proceed:
        engine.proceed(folder.run_folder, prepared, executor=make)
    else:
        engine.start(prepared, folder.run_folder, executor=make)


def load_test(about: Deployment) -> Dataset:
    """The server's own test samples, in the place of training samples, too, of which it has none."""
    if not about.test:
        raise InputError("deploy.toml: test: expected the server's test samples, such as npz:test.npz")
    data = load(sources.build(about.test))
    return Dataset("server", data.test, data.test, data.classes, data.mean, data.std)
