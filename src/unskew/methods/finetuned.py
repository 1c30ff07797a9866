"""Fine-tuning at the clients: each trains the final model a little on its own data before it uses it.

FedSOL-FT of Lee et al., "FedSOL: Stabilized Orthogonal Learning with Proximal Restrictions in Federated Learning",
CVPR 2024, Table 9; around any method.

    paper          here
    e              epochs
    w_g            what the inner method's `personalise` gives

Training of the global model is untouched. When clients are tested (after the last round, unless
`evaluation.clients_every` says more), each first takes `epochs` passes of SGD on plain cross-entropy, with the local
settings of that round and without any term or perturbation. The paper's code leaves this out; the loop is ours.
"""

from __future__ import annotations

from typing import Literal

from unskew.base.batch import Batch
from unskew.base.registry import param
from unskew.base.tree import Tree
from unskew.core import local_loop
from unskew.core.context import ClientContext
from unskew.core.method import methods
from unskew.core.wrapper import Wrapper


def plain_gradient(c: ClientContext, params: Tree, batch: Batch) -> Tree:
    """The gradient of cross-entropy and of nothing else."""
    return c.grad(lambda p: batch.cross_entropy(c.forward(p, batch.x).logits), params)


@methods.register("finetuned")
class Finetuned(Wrapper):
    """The inner method; a client that uses its model trains it for some epochs on its own data first."""

    epochs: int = param(default=1, ge=0, doc="passes over the client's data before its test", source="FedSOL, Table 9")

    @property
    def output(self) -> Literal["global", "personal", "both", "tuned"]:  # type: ignore[override]
        """Still the global model, which clients change before use; a personal method's clients as ever."""
        return "tuned" if self.inner.output == "global" else self.inner.output

    def personalise(self, c: ClientContext) -> Tree:
        """The inner method's model after `epochs` passes of plain SGD."""
        aside = c.aside(epochs=self.epochs, steps=None)
        return local_loop.sgd(aside, self.inner.personalise(c), plain_gradient, purpose="finetune")
