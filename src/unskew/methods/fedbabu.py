"""FedBABU: only the body is trained and averaged, the head stays random; clients fine-tune both before use.

Oh, Kim, Yun, "FedBABU: Toward Enhanced Representation for Federated Image Classification", ICLR 2022.

    paper                        here
    theta_ext, the extractor     the body, c.message["model"]
    theta_cls, the classifier    the head, frozen at the initial model's and never sent: all clients have it
    fine-tuning epochs           finetune
    body, head or full           where

A common random head is a fixed target for all bodies, so that averaging them is not disturbed by heads that each lean
to their client's labels. After training, each client fine-tunes the whole model on its own data and is tested with it;
the global model itself is tested with the random head.
"""

from __future__ import annotations

from unskew.base.errors import InputError
from unskew.base.registry import param
from unskew.base.tree import Groups, Tree
from unskew.core.context import ClientContext, Outcome, ServerContext
from unskew.core.division import Head
from unskew.core.method import Method, methods
from unskew.methods.finetuned import Where, find_tuned, tune


@methods.register("fedbabu")
class FedBABU(Method):
    """Body trained and averaged under a fixed random head; clients fine-tune before they use it."""

    finetune: int = param(
        default=10, ge=0, doc="passes over the client's data before its test", source="PFLlib; FedSOL, Table 9: 1 and 5"
    )
    where: Where = param(default="all", doc="which parameters are fine-tuned", source="paper")

    frozen = ("head.*",)
    division = Head()  # type: ignore[assignment]
    output = "tuned"

    def personalise(self, c: ClientContext) -> Tree | Outcome:
        """The received body and the common head after `finetune` passes of plain SGD."""
        return tune(c, super().personalise(c), self.finetune, self.where)

    def init(self, s: ServerContext) -> Groups:
        """The initial model; refuses one without a body to train, or to tune nothing."""
        self.division.check(s)
        if not find_tuned(s, self.where):
            raise InputError(f"fedbabu(where={self.where}) has nothing to tune: the network froze that part")
        return super().init(s)
