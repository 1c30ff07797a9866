"""Methods without aggregation: clients send a few synthetic images, the server trains the model on all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pydantic
import torch
from torch import Tensor

from unskew.base import tree
from unskew.base.batch import Batch, Output
from unskew.base.errors import InputError
from unskew.base.registry import param, validated
from unskew.base.tree import Groups, Tree
from unskew.core.context import ClientContext, ServerContext
from unskew.core.method import Method
from unskew.core.term import Term
from unskew.methods import condense


@validated
class Condensing(Method):
    """The client's and the server's loop; a method says which network looks, and what must match."""

    ipc: int = param(default=50, ge=1, doc="synthetic images per class held", source="FedAF paper, CIFAR-10")
    steps: int = param(default=1000, ge=0, doc="condensation steps per visit", source="FedAF paper")
    image_lr: float = param(default=1.0, ge=0, doc="learning rate of the pixels", source="FedAF paper, CIFAR-10")
    image_momentum: float = param(default=0.9, ge=0, lt=1, doc="momentum of the pixels", source="FedAF paper")
    real_batch: int = param(default=256, ge=1, doc="real images of each class in a step, at most", source="FedAF paper")
    mean_of: int = param(
        default=10, ge=0, doc="real images averaged into each first image; 0: noise", source="our choice (E8)"
    )
    warm_start: bool = param(
        default=False, doc="go on from the client's images of its last visit", source="our choice (E9), as FedDM"
    )
    quantise: bool = param(default=False, doc="send images in 8 bits instead of floats", source="our choice (E13)")
    server_epochs: int = param(default=500, ge=1, doc="epochs over all condensed data", source="FedAF paper")
    server_lr: float = param(default=0.001, ge=0, doc="learning rate of the server", source="FedAF paper")
    server_momentum: float = param(default=0.9, ge=0, lt=1, doc="momentum of the server", source="FedAF paper")
    server_batch: int = param(default=256, ge=1, doc="batch of the server", source="FedAF paper")

    buffer_policy = "average"  # the server trains, so that BatchNorm's statistics are its own
    stackable = False  # replies hold as many images as a client holds classes
    reducers = {"data": condense.union}

    @pydantic.field_validator("terms")
    @classmethod
    def _no_terms(cls, value: tuple[Term, ...]) -> tuple[Term, ...]:
        if value:
            raise ValueError("expected none, as clients train no model whose loss they could join; leave them out")
        return value

    # --------------------------------------------------------------------------- what a method decides

    def network(self, c: ClientContext, params: Tree) -> Tree:
        """The network that looks at the images in this step."""
        return params

    def matching(self, c: ClientContext, real: Output, made: Output) -> Tensor:
        """How far the class means ([C, ...]) of the synthetic images are from those of the real ones."""
        return condense.gap(real.features, made.features)

    def direction(self, grads: Tree) -> Tree:
        """The step's direction in the space of images."""
        return grads

    def server_loss(self, s: ServerContext, merged: Groups) -> Callable[[Tree, Batch], Tensor]:
        """The loss of a batch of condensed data."""
        return lambda params, batch: batch.cross_entropy(s.forward(params, batch.x).logits)

    def tables(self) -> int:
        """How many tables [C, C] a client sends beside its images."""
        return 0

    # ----------------------------------------------------------------------------------------- slots

    def train(self, c: ClientContext, params: Tree) -> Tree:
        """The condensed data: images `x` and their classes `y`; the model itself is not trained."""
        self._check(c)
        if len(c.data) == 0:
            return {}
        real = condense.gathered(c)
        first = c.state.get("data") or condense.first_images(c, real, self.ipc, self.mean_of)
        batches = condense.real_batches(c, real, self.real_batch, self.steps)
        return self.condensed(c, params, first, batches)

    def _check(self, c: ClientContext) -> None:
        if c.terms:
            raise InputError(
                f"{self.name} trains no model at its clients, so a wrapper's terms join nothing; leave them out"
            )
        if self.quantise and c.data.source.x.is_floating_point():
            raise InputError(
                f"{self.name}: quantise needs images of 8 bits, got {c.data.source.x.dtype}; use quantise=false"
            )

    def condensed(self, c: ClientContext, params: Tree, images: Tree, batches: Iterable[Batch]) -> Tree:
        """The images after a step for each batch of real ones."""
        labels = images["y"]

        def gradient(mover: ClientContext, moving: Tree, batch: Batch) -> Tree:
            net = self.network(mover, params)
            with torch.no_grad():
                real = condense.by_class(condense.see(c, net, batch.x), batch.y, c.num_classes)

            def loss(at: Tree) -> Tensor:
                made = condense.by_class(condense.see(c, net, at["x"]), labels, c.num_classes)
                return self.matching(mover, real, made)

            grads, value = mover.grad_and_value(loss, moving)
            mover.diagnostics.note("train_loss", value)
            return self.direction(grads)

        return condense.condense(c, images, gradient, batches, self.image_lr, self.image_momentum)

    def upload(self, c: ClientContext, params: Tree) -> Groups:
        """The condensed data; beside the measured bytes the row holds the paper's count, 8 bits a pixel."""
        held, shape = int((c.counts > 0).sum()), tuple(params["x"].shape[1:]) if params else ()
        size = condense.up_bytes(c.num_classes, held, self.ipc, shape, self.tables())
        c.diagnostics.note("bytes_up_8bit", float(size))
        return {"data": condense.in_8_bits(c, params) if self.quantise and params else params}

    def keep(self, c: ClientContext, params: Tree) -> Groups:
        """The images, if the next visit goes on from them."""
        return {"data": params} if self.warm_start and params else {}

    def update(self, s: ServerContext, server: Groups, merged: Groups) -> Groups:
        """The model goes on training, on all condensed data of the round (E10)."""
        if not merged["data"]:
            return server
        model = condense.fit(
            s, server["model"], merged["data"], self.server_loss(s, merged),
            lr=self.server_lr, momentum=self.server_momentum, batch=self.server_batch, epochs=self.server_epochs,
        )  # fmt: skip
        return {**server, "model": model, "buffers": tree.copy(s.buffers)}
