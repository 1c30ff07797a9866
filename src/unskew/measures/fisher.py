"""Trace of the Fisher information of each trained client's model; FedAS's function does the work."""

from __future__ import annotations

from unskew.base.tree import Tree
from unskew.core.context import ClientContext
from unskew.core.task import Task
from unskew.measures.base import BaseObserver, Figures, Look, Measure, measures
from unskew.methods.fedas.fisher import fisher_trace


class _Traces(BaseObserver):
    """Notes the trace at the end of a visit's training."""

    def trained(self, c: ClientContext, params: Tree) -> None:
        """Notes the trace of the trained model on the client's data."""
        c.diagnostics.note("fisher_trace", fisher_trace(c, params, "batch"))


@measures.register("fisher")
class Fisher(Measure):
    """Trace of each trained client's Fisher information, in its row beside `share` (FedAS, Fig. 3b and 4a)."""

    def observer(self, task: Task) -> BaseObserver:
        """Notes `fisher_trace` in the clients' rows."""
        return _Traces()

    def figures(self, look: Look) -> Figures:
        """`fisher_trace`, the mean over the clients."""
        return look.mean_notes("fisher_trace")
