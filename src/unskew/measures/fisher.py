"""Trace of the Fisher information of each trained client's model; FedAS's function does the work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from unskew.base.registry import param
from unskew.base.tree import Tree
from unskew.core.context import ClientContext
from unskew.core.jobs import Job
from unskew.measures.base import Figures, Look, Measure, measures
from unskew.methods.fedas.fisher import fisher_trace


@measures.register("fisher")
class Fisher(Measure):
    """Trace of each trained client's Fisher information, in its row beside `share` (FedAS, Fig. 3b and 4a)."""

    reading: ClassVar[Mapping[str, str]] = {
        "fisher_trace": "How much clients' models still respond to their data; low: little is learnt there.",
        "fisher_traces": "Of every client; an outlier learns much more than the others, or much less.",
    }

    absent: bool = param(
        default=False,
        doc="record `fisher_traces` of all clients after each round; one never online has the initial model's",
    )

    def trained(self, c: ClientContext, params: Tree) -> None:
        """Notes `fisher_trace` of the trained model in the client's row."""
        c.diagnostics.note("fisher_trace", fisher_trace(c, params, "batch"))

    def figures(self, look: Look) -> Figures:
        """`fisher_trace`, the mean over the clients; with `absent` also `fisher_traces`, a list of all clients'."""
        found = look.mean_notes("fisher_trace")
        return {**found, "fisher_traces": self._all_traces(look)} if self.absent else found

    def _all_traces(self, look: Look) -> list[float]:
        """A client that is not in the round keeps its model, and so its trace."""
        traces = next((row["measures"]["fisher_traces"] for row in reversed(look.earlier) if _has_traces(row)), None)
        traces = list(traces) if traces is not None else _initial_traces(look)
        for row in look.clients:
            if "fisher_trace" in row:
                traces[row["client"]] = row["fisher_trace"]
        return traces


def _has_traces(row: Figures) -> bool:
    return "fisher_traces" in row.get("measures", {})


def _initial_traces(look: Look) -> list[float]:
    """Of the initial model on each client's samples."""
    task, model = look.task, look.task.initial_on_device["model"]
    message = {"model": model, "buffers": task.initial_on_device["buffers"]}
    traces = []
    for client in range(task.num_clients):
        c = task.client_context(Job("train", 0, client, message), task.federation.train(client))
        traces.append(float(fisher_trace(c, model, "batch")) if len(c.data) else 0.0)
    return traces
