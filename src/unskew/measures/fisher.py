"""Trace of the Fisher information of each trained client's model; FedAS's function does the work."""

from __future__ import annotations

from unskew.base.tree import Tree
from unskew.core.context import ClientContext
from unskew.measures.base import Figures, Look, Measure, measures
from unskew.methods.fedas.fisher import fisher_trace


@measures.register("fisher")
class Fisher(Measure):
    """Trace of each trained client's Fisher information, in its row beside `share` (FedAS, Fig. 3b and 4a)."""

    def trained(self, c: ClientContext, params: Tree) -> None:
        """Notes `fisher_trace` of the trained model in the client's row."""
        c.diagnostics.note("fisher_trace", fisher_trace(c, params, "batch"))

    def figures(self, look: Look) -> Figures:
        """`fisher_trace`, the mean over the clients."""
        return look.mean_notes("fisher_trace")
