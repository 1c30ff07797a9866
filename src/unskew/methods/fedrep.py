"""FedRep: each client first fits its own head to the received body, then the body to that head; bodies are averaged.

Collins, Hassani, Mokhtari, Shakkottai, "Exploiting Shared Representations for Personalized Federated Learning",
ICML 2021.

    paper                    here
    phi, the representation  c.message["model"], the shared part (body)
    h_i, the head            c.state["personal"], the client's own part
    head updates             head_epochs
    body updates             body_epochs (none given: the run's epochs or steps)

FedPer trains both at once; here they take turns, so that the body moves along gradients of a head that already fits the
client. The paper's code takes 10 epochs for the head; PFLlib, whose value FedAS's comparison has, one.
"""

from __future__ import annotations

from unskew.base.errors import InputError
from unskew.base.registry import param
from unskew.base.tree import Groups, Tree
from unskew.core import local_loop
from unskew.core.context import ClientContext, Context, ServerContext
from unskew.core.method import methods
from unskew.methods.fedper import FedPer


@methods.register("fedrep")
class FedRep(FedPer):
    """FedPer whose clients train the head first and the body after it."""

    head_epochs: int = param(default=1, ge=0, doc="passes in which the head alone is trained", source="PFLlib")
    body_epochs: int | None = param(
        default=None, ge=0, doc="passes in which the body alone is trained; none: as the run says", source="PFLlib"
    )

    def train(self, c: ClientContext, params: Tree) -> Tree:
        """The head with the body at rest, then the body with the head at rest; momentum begins anew."""
        own, shared = self._parts(c)
        head = c.with_fields(trainable=own)
        params = local_loop.sgd(head, params, self.gradient, epochs=self.head_epochs, purpose="batches/head")
        body = c.with_fields(trainable=shared)
        return local_loop.sgd(body, params, self.gradient, epochs=self.body_epochs)

    def _parts(self, c: Context) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What is trained first, and what after it: parameters that are the client's own, and (partly) shared ones."""
        shared = self.shared(c, c.initial["model"])
        own = tuple(name for name in c.trainable if name not in shared)
        return own, tuple(name for name in c.trainable if name in shared)

    def init(self, s: ServerContext) -> Groups:
        """The initial model; refuses a division that leaves one of the two with nothing to train."""
        server = super().init(s)
        if not self._parts(s)[0]:
            raise InputError(f"fedrep trains the client's own part first, and division {self.division} leaves none")
        return server
