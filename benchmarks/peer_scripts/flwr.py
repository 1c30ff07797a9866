"""Flower: its message API on the simulation runtime (Ray), one actor a core, one thread each."""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict  # type: ignore[import-not-found]
from flwr.clientapp import ClientApp  # type: ignore[import-not-found]
from flwr.serverapp import Grid, ServerApp  # type: ignore[import-not-found]
from flwr.serverapp.strategy import FedAvg  # type: ignore[import-not-found]
from flwr.simulation import run_simulation  # type: ignore[import-not-found]

from benchmarks.peer_scripts import common


def client_app(source: str) -> Any:
    """What runs in the actors; each reads the arrays once."""
    app = ClientApp()

    @app.train()  # type: ignore[untyped-decorator]
    def train(message: Any, context: Context) -> Any:
        torch.set_num_threads(1)
        task = common.load(source)
        model = common.torch_model(task)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        client = int(context.node_config["partition-id"])
        x, y = torch.from_numpy(task.x[client]), torch.from_numpy(task.y[client])
        common.train(model, x, y, task.settings)
        content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
        return Message(content=RecordDict(content), reply_to=message)

    return app


def server_app(source: str, clock: common.Clock) -> Any:
    """FedAvg; the global model is tested at the server after each round."""
    app = ServerApp()
    task = common.load(source)
    model = common.torch_model(task)
    torch.set_num_threads(os.cpu_count() or 1)  # while the server tests, the actors wait

    def test(round_: int, arrays: ArrayRecord) -> Any:
        model.load_state_dict(arrays.to_torch_state_dict())
        loss, accuracy = common.evaluate(model, task)
        clock.tick(loss)
        return MetricRecord({"loss": loss, "accuracy": accuracy})

    @app.main()  # type: ignore[untyped-decorator]
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_train=task.settings["cohort"] / len(task.x),
            fraction_evaluate=0.0,
            min_available_nodes=len(task.x),
        )
        initial = ArrayRecord(model.state_dict())
        strategy.start(grid=grid, initial_arrays=initial, num_rounds=task.settings["rounds"], evaluate_fn=test)

    return app


if __name__ == "__main__":
    clock = common.Clock()
    source, report = common.arguments()
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": os.cpu_count() or 1}}
    run_simulation(
        server_app=server_app(source, clock),
        client_app=client_app(source),
        num_supernodes=len(common.load(source).x),
        backend_config=resources,
    )
    clock.write(report, version("flwr"))
