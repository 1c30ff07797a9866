"""Fine-tuning at the clients: each trains the final model a little on its own data before it uses it.

FedSOL-FT of Lee et al., "FedSOL: Stabilized Orthogonal Learning with Proximal Restrictions in Federated Learning",
CVPR 2024, Table 9; around any method.

    paper          here
    e              epochs
    theta          where: all of the model, its head or its body; frozen parts are tuned, too (FedBABU)
    w_g            what the inner method's `personalise` gives

Training of the global model is untouched. When clients are tested (after the last round, unless
`evaluation.clients_every` says more), each first takes `epochs` passes of SGD on plain cross-entropy, with the local
settings of that round and without any term or perturbation. The paper's code leaves this out; the loop is ours.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from unskew.base.batch import Batch
from unskew.base.registry import param
from unskew.base.tree import Tree
from unskew.core import local_loop
from unskew.core.context import ClientContext, Outcome
from unskew.core.method import methods
from unskew.core.wrapper import Wrapper


def plain_gradient(c: ClientContext, params: Tree, batch: Batch) -> Tree:
    """The gradient of cross-entropy and of nothing else."""
    return c.grad(lambda p: batch.cross_entropy(c.forward(p, batch.x).logits), params)


@methods.register("finetuned")
class Finetuned(Wrapper):
    """The inner method; a client that uses its model trains it for some epochs on its own data first."""

    epochs: int = param(default=1, ge=0, doc="passes over the client's data before its test", source="FedSOL, Table 9")
    where: Literal["all", "head", "body"] = param(
        default="all", doc="which parameters are tuned, also such as the method itself does not train", source="FedBABU"
    )

    @property
    def output(self) -> Literal["global", "personal", "both", "tuned"]:  # type: ignore[override]
        """Still the global model, which clients change before use; a personal method's clients as ever."""
        return "tuned" if self.inner.output == "global" else self.inner.output

    def personalise(self, c: ClientContext) -> Tree | Outcome:
        """The inner method's model after `epochs` passes of plain SGD."""
        found = self.inner.personalise(c)
        aside = replace(c.aside(epochs=self.epochs, steps=None), trainable=self.tuned(c))
        if not isinstance(found, Outcome):
            return local_loop.sgd(aside, found, plain_gradient, purpose="finetune")
        return found._replace(params=local_loop.sgd(aside, found.params, plain_gradient, purpose="finetune"))

    def tuned(self, c: ClientContext) -> tuple[str, ...]:
        """The parameters that are tuned, frozen ones included (FedBABU's head)."""
        if self.where == "all":
            return c.names.params
        return tuple(name for name in c.names.params if name.startswith("head.") == (self.where == "head"))
