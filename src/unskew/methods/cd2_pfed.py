"""CD2-pFed: every layer's output channels are part shared, part private, and both learn from each other.

Shen, Zhou, Yu, "CD2-pFed: Cyclic Distillation-guided Channel Decoupling for Model Personalization in Federated
Learning", CVPR 2022.

    paper                    here
    rho_p                    share of `division`: the private share of each layer's channels
    growing rho_p            grow of `division`: rounds in which it grows linearly from 0
    cyclic distillation      the term `cyclic`: distillation, tau

No code is public, and we build on how FedAS and others describe the method. Assumed: the first channels are shared; the
head is private; predictions of the shared channels are those of the model whose private channels are silent, under the
client's own head; both directions of the divergence count alike, what teaches is constant, and no other loss is put on
the shared channels alone.
"""

from __future__ import annotations

from unskew.base.registry import param
from unskew.core.division import Channels, Division
from unskew.core.method import methods
from unskew.core.term import Term
from unskew.methods.fedper import FedPer
from unskew.terms.cyclic import Cyclic


@methods.register("cd2_pfed")
class CD2pFed(FedPer):
    """FedPer that divides channels, with distillation between the whole model and its shared channels."""

    division: Division = param(  # type: ignore[assignment]
        default=Channels(share=0.5), doc="which channels are shared", source="our choice; no code is public"
    )
    distillation: float = param(
        default=1.0, ge=0, doc="strength of the cyclic distillation", source="our choice; no code is public"
    )
    tau: float = param(
        default=1.0, gt=0, doc="temperature of the cyclic distillation", source="our choice; no code is public"
    )

    def own_terms(self) -> tuple[Term, ...]:
        """The cyclic distillation."""
        return (Cyclic(weight=self.distillation, tau=self.tau),)
