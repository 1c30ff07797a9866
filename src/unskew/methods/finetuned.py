"""Fine-tuning at the clients: each trains the final model a little on its own data before it uses it.

FedSOL-FT of Lee et al., "FedSOL: Stabilized Orthogonal Learning with Proximal Restrictions in Federated Learning",
CVPR 2024, Table 9; around any method.

    paper          here
    e              epochs
    theta          where: all of the model, its head or its body; parts that the method freezes are tuned, too (FedBABU)
    w_g            what the inner method's `personalise` gives

Training of the global model is untouched. When clients are tested (after the last round, unless
`evaluation.clients_every` says more), each first takes `epochs` passes of SGD on plain cross-entropy, with the local
settings of that round and without any term or perturbation. The paper's code leaves this out; the loop is ours.
"""

from __future__ import annotations

from typing import Literal

from unskew.base.batch import Batch
from unskew.base.errors import InputError
from unskew.base.registry import param
from unskew.base.tree import Groups, Tree
from unskew.core import local_loop
from unskew.core.context import STATISTICS, ClientContext, Context, Outcome, ServerContext
from unskew.core.method import methods
from unskew.core.wrapper import Wrapper

Where = Literal["all", "head", "body"]


def plain_gradient(c: ClientContext, params: Tree, batch: Batch) -> Tree:
    """The gradient of cross-entropy and of nothing else."""
    return c.grad(lambda p: batch.cross_entropy(c.forward(p, batch.x).logits), params)


def tune(c: ClientContext, found: Tree | Outcome, epochs: int, where: Where) -> Tree | Outcome:
    """The model that a slot gave after so many passes of plain SGD, which count for nothing else."""
    aside, made = c.aside(epochs=epochs, steps=None).with_fields(trainable=find_tuned(c, where)), Outcome.of(found).made
    if own := made.get(STATISTICS):  # they belong to the model, and are tuned with it
        aside = aside.with_buffers(own)
    params = local_loop.sgd(aside, Outcome.of(found).params, plain_gradient, purpose="finetune")
    return Outcome(params, {**made, STATISTICS: aside.buffers} if own else made) if made else params


def find_tuned(c: Context, where: Where) -> tuple[str, ...]:
    """The parameters that are tuned, also such as the method freezes (FedBABU's head), but not the network."""
    free = tuple(name for name in c.names.params if name not in c.names.fixed)
    if where == "all":
        return free
    return tuple(name for name in free if name.startswith("head.") == (where == "head"))


@methods.register("finetuned")
class Finetuned(Wrapper):
    """The inner method; a client that uses its model trains it for some epochs on its own data first."""

    epochs: int = param(default=1, ge=0, doc="passes over the client's data before its test", source="FedSOL, Table 9")
    where: Where = param(
        default="all", doc="which parameters are tuned, also such as the method itself does not train", source="FedBABU"
    )

    @property
    def output(self) -> Literal["global", "personal", "both", "tuned"]:  # type: ignore[override]
        """Still the global model, which clients change before use; a personal method's clients as ever."""
        return "tuned" if self.inner.output == "global" else self.inner.output

    def personalise(self, c: ClientContext) -> Tree | Outcome:
        """The inner method's model after `epochs` passes of plain SGD."""
        return tune(c, self.inner.personalise(c), self.epochs, self.where)

    def init(self, s: ServerContext) -> Groups:
        """The inner method's; refuses to tune nothing."""
        if not find_tuned(s, self.where):
            raise InputError(f"finetuned(where={self.where}) has nothing to tune: the network froze that part")
        return self.inner.init(s)
