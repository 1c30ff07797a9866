"""The server's app: our own loop over Flower's grid. A run that was stopped goes on from its checkpoint.

Flower starts it in the folder of its server, `server/` of the deployment.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from unskew.base import storage
from unskew.base.errors import InputError, SlotError, one_line
from unskew.core.jobs import Executor
from unskew.core.task import Task
from unskew.deploy import presence
from unskew.deploy.flower.processes import read_nodes
from unskew.deploy.flower.transport import OverFlower
from unskew.deploy.folder import DeployFolder, Order
from unskew.deploy.server import OverSites, Terms, prepare_deployment
from unskew.runs import engine
from unskew.runs.config import Run

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Plays the run that was ordered; what went wrong is a file beside the order."""
    folder = DeployFolder(Path.cwd().parent)
    order = folder.read_order(str(context.run_config["run"]))
    _log_to(folder.order_file(order, "log"))
    with presence.hold(folder.order_file(order, "lock"), "this run"):
        try:
            play(grid, folder, order)
        except (InputError, SlotError) as error:
            why = {"code": 1 if isinstance(error, SlotError) else 2, "text": one_line(error)}
            storage.write_atomic(folder.order_file(order, "failed"), json.dumps(why).encode())
            raise


def _log_to(path: Path) -> None:
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    own = logging.getLogger("unskew")
    own.setLevel(logging.INFO)
    own.addHandler(handler)


def play(grid: Grid, folder: DeployFolder, order: Order) -> None:
    """The whole run, from its beginning or from its newest checkpoint."""
    about, prepared = folder.read(), prepare_deployment(folder)
    transport = OverFlower(grid, about.sites, read_nodes(folder), order.round_timeout, about.join_timeout)

    def make(config: Run, task: Task) -> Executor:
        terms = Terms(min_replies=order.min_replies, limit=about.limit)
        return OverSites(config, task, order.run, transport, about.sites, terms)

    out = folder.runs / order.out
    if order.proceed:
        engine.proceed(out, prepared, executor=make)
    else:
        engine.start(prepared, out, executor=make)
