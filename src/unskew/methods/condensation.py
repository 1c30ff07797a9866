"""Condensation: clients send a few synthetic images a class, moved until a network sees them as it sees the real ones.

What FedDM and FedAF share. A visit: `train` takes `first_images` and moves them for `steps` steps; in each a network
looks at real and synthetic images, and `matching` says how far their class means are apart. `upload` sends the images,
`update` trains the server's model on those of all clients. A method says which network looks (`network`), what must
match (`matching`) and what the server minimises (`server_loss`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from unskew.base import progress, tree
from unskew.base.batch import Batch, Output
from unskew.base.errors import InputError
from unskew.base.naming import helper
from unskew.base.registry import param, validated
from unskew.base.settings import PLAIN
from unskew.base.tree import Groups, Tree
from unskew.core.context import ClientContext, LocalGradient, Outcome, ServerContext
from unskew.core.jobs import Reply
from unskew.core.method import Method
from unskew.core.reducers import concat
from unskew.data.batches import LocalData, Pipeline, batch_bounds
from unskew.data.dataset import Samples
from unskew.data.transforms import Unvaried

IMAGES = ("x",)
"""What condensation moves: the tensor `x` of a tree; `y` are its classes."""


# ------------------------------------------------------------------------------------ what a network sees


def look(c: ClientContext, params: Tree, x: Tensor) -> Output:
    """Logits and features with BatchNorm's statistics of these images, which are not remembered."""
    if len(x) > 1 or not c.has_batchnorm:
        return c.forward(params, x, "batch")
    twice = c.forward(params, torch.cat([x, x]), "batch")  # torch takes no statistics of one image; two alike have them
    return Output(twice.logits[:1], twice.features[:1])


def class_means(values: Tensor, y: Tensor, num_classes: int) -> Tensor:
    """[C, D]: the mean of the rows of each class; zeros for a class that has none."""
    hot = (y.unsqueeze(-1) == torch.arange(num_classes, device=y.device)).to(values.dtype)
    return hot.T @ values / hot.sum(0).clamp(min=1).unsqueeze(1)


def average_by_class(out: Output, y: Tensor, num_classes: int) -> Output:
    """Mean logits [C, C] and mean features [C, D] of each class."""
    return Output(class_means(out.logits, y, num_classes), class_means(out.features, y, num_classes))


def squared_gap(real: Tensor, made: Tensor) -> Tensor:
    """L_DM: the squared distances of the class means, summed over the classes; an absent class has none."""
    return (real - made).square().sum()


# ------------------------------------------------------------------------------------------- the client


def gather(c: ClientContext) -> Batch:
    """All of the client's samples as one batch: normalised, not augmented."""
    parts = list(c.passes())
    x, y, positions = (torch.cat([part[i] for part in parts]) for i in range(3))  # type: ignore[misc]
    return Batch(x, y, positions)


def select_classes(batch: Batch, classes: Tensor) -> Batch:
    """The samples of these classes; `classes`: [C] bool."""
    wanted = classes.to(batch.y.device)[batch.y]
    return batch if wanted.all() else Batch(batch.x[wanted], batch.y[wanted], batch.positions[wanted])


def held_classes(batch: Batch) -> Tensor:
    """The classes that occur, in order."""
    return torch.nonzero(torch.bincount(batch.y)).flatten()


def first_images(c: ClientContext, real: Batch, ipc: int, mean_of: int) -> Tree:
    """`ipc` images of each class held: each the mean of up to `mean_of` of its images, drawn without replacement.

    With `mean_of` 0 they are noise of unit variance.
    """
    rng, images = c.rng("condense/first"), []
    held = held_classes(real)
    for label in held:
        own = real.x[real.y == label]
        if mean_of == 0:
            images.append(torch.randn(ipc, *own.shape[1:], generator=rng, dtype=own.dtype).to(own.device))
            continue
        drawn = torch.rand(ipc, len(own), generator=rng).argsort(1)[:, :mean_of]
        images.append(own[drawn.to(own.device)].mean(1))
    return {"x": torch.cat(images), "y": held.repeat_interleave(ipc)}


def real_batches(c: ClientContext, real: Batch, size: int, steps: int) -> Iterator[Batch]:
    """For each step up to `size` images of every class, drawn without replacement; all of them, in order, if so few."""
    places = [torch.nonzero(real.y == label).flatten() for label in held_classes(real)]
    rng = c.rng("condense/real")
    all_fit = all(len(own) <= size for own in places)
    for step in range(steps):
        progress.say(f"client {c.client}: condensing", step, steps)
        if all_fit:
            yield real
            continue
        taken = [own[torch.randperm(len(own), generator=rng)[:size].to(own.device)] for own in places]
        index = torch.cat(taken)
        yield Batch(real.x[index], real.y[index], index)


def descend(
    c: ClientContext, images: Tree, gradient: LocalGradient, batches: Iterable[Batch], lr: float, momentum: float
) -> Tree:
    """The images after one step of SGD along `gradient(c, images, batch)` for each batch; nothing else is moved."""
    settings = replace(c.settings, lr=lr, **{**PLAIN, "momentum": momentum})
    # whoever watches local training expects parameters of the model, which here stay as they are
    mover = c.with_fields(settings=settings, trainable=IMAGES, observers=())
    moved = c.steps.descend(mover, {"x": images["x"]}, gradient, batches)
    return {"x": moved["x"].contiguous(), "y": images["y"]}


# -------------------------------------------------------------------------------------- between the two


def to_8_bits(c: ClientContext, data: Tree) -> Tree:
    """The images as grey values 0..255, and what black and white are after normalisation."""
    shape = (1, data["x"].shape[1], *(1,) * (data["x"].dim() - 2))
    ends = (torch.full(shape, level, dtype=torch.uint8, device=data["x"].device) for level in (0, 255))
    black, white = (c.data.pipeline.inputs(level) for level in ends)
    levels = ((data["x"] - black) / (white - black) * 255).round().clamp(0, 255)
    return {"x": levels.to(torch.uint8), "y": data["y"], "black": black, "white": white}


class union(concat):
    """The condensed data of all clients, 8-bit images brought back to the space the model takes."""

    def add(self, value: Tree, reply: Reply) -> None:
        """Takes in one client's images and their classes."""
        x = value["x"]
        if "black" in value:
            x = value["black"] + (value["white"] - value["black"]) * (x / 255)
        super().add({"x": x, "y": value["y"]}, reply)


def count_bytes(num_classes: int, classes_held: int, ipc: int, shape: tuple[int, ...], tables: int = 2) -> int:
    """Bytes a client sends by the paper's count: 1 per pixel and channel, 4 per entry of each C x C table."""
    return classes_held * ipc * math.prod(shape) + tables * 4 * num_classes**2


# ------------------------------------------------------------------------------------------- the server


def fit(s: ServerContext, params: Tree, data: Tree, loss: Callable[[Tree, Batch], Tensor], **settings: Any) -> Tree:
    """Trains the global model on condensed data; `settings` as of a client. The losses go into the round's record."""
    at_server = s.aside(**{**PLAIN, "steps": None, "drop_last": False, "shuffle": True, **settings})
    own = LocalData(Samples(data["x"], data["y"]), None, Pipeline(s.num_classes, (), (), Unvaried()))
    epochs = at_server.settings.epochs
    in_epoch = len(batch_bounds(len(own), at_server.settings.batch, skip_single=s.has_batchnorm))

    def gradient(c: Any, params: Tree, batch: Batch) -> Tree:
        done = (c.diagnostics.steps - 1) // in_epoch
        progress.say("server training", done, epochs)
        grads: Tree
        grads, value = c.grad_and_value(lambda p: loss(p, batch), params)
        for name, epoch in (("server_loss_first_epoch", 0), ("server_loss", epochs - 1)):
            if done == epoch:
                c.diagnostics.note(name, value)
        return grads

    batches = own.batches(at_server.settings, s.rng("condensed"), None, s.has_batchnorm)
    trained = s.steps.descend(at_server, params, gradient, batches)
    s.record.update(at_server.diagnostics.means())
    return trained


# ------------------------------------------------------------------------------------------ the two methods


@validated
class Condensing(Method):
    """The client's and the server's loop; a method says which network looks, and what must match."""

    ipc: int = param(default=50, ge=1, doc="synthetic images per class held", source="FedAF paper, CIFAR-10")
    min_class: Annotated[int, Field(ge=1)] | Literal["ipc"] = param(
        default=1,
        doc="a client condenses the classes of which it holds so many samples",
        source="our choice, so that small clients take part; `ipc` gives the bytes of FedAF's Table 7",
    )
    steps: int = param(default=1000, ge=0, doc="condensation steps per visit", source="FedAF paper")
    image_lr: float = param(default=1.0, ge=0, doc="learning rate of the pixels", source="FedAF paper, CIFAR-10")
    image_momentum: float = param(default=0.9, ge=0, lt=1, doc="momentum of the pixels", source="FedAF paper")
    real_batch: int = param(default=256, ge=1, doc="real images of each class in a step, at most", source="FedAF paper")
    mean_of: int = param(
        default=10, ge=0, doc="real images averaged into each first image; 0: noise", source="our choice"
    )
    warm_start: bool = param(
        default=False, doc="continue from the client's images of its last visit", source="our choice, as FedDM"
    )
    quantise: bool = param(
        default=False, doc="send images in 8 bits instead of floats", source="our choice: floats, as in training"
    )
    server_epochs: int = param(default=500, ge=1, doc="epochs over all condensed data", source="FedAF paper")
    server_lr: float = param(default=0.001, ge=0, doc="learning rate of the server", source="FedAF paper")
    server_momentum: float = param(default=0.9, ge=0, lt=1, doc="momentum of the server", source="FedAF paper")
    server_batch: int = param(default=256, ge=1, doc="batch of the server", source="FedAF paper")

    buffer_policy = "average"  # the server trains, so that BatchNorm's statistics are its own
    stackable = False  # replies hold as many images as a client holds classes
    takes_terms = False
    ignores = (
        "local.epochs", "local.steps", "local.batch", "local.lr", "local.lr_decay", "local.schedule", "local.momentum",
        "local.weight_decay", "local.optimiser", "local.nesterov", "local.clip", "local.drop_last", "local.shuffle",
        "augment",
    )  # fmt: skip
    reducers = {"data": union}

    # --------------------------------------------------------------------------- what a method decides

    @helper
    def network(self, c: ClientContext, params: Tree) -> Tree:
        """The network that looks at the images in this step, w'."""
        return params

    @helper
    def matching(self, c: ClientContext, real: Output, made: Output) -> Tensor:
        """How far the class means ([C, ...]) of the synthetic images are from those of the real ones."""
        return squared_gap(real.features, made.features)

    @helper
    def direction(self, grads: Tree) -> Tree:
        """The step's direction in the space of images."""
        return grads

    @helper
    def server_loss(self, s: ServerContext, merged: Groups) -> Callable[[Tree, Batch], Tensor]:
        """The loss of a batch of condensed data."""
        return lambda params, batch: batch.cross_entropy(s.forward(params, batch.x).logits)

    @helper
    def tables(self) -> int:
        """How many tables [C, C] a client sends beside its images."""
        return 0

    # ----------------------------------------------------------------------------------------- slots

    def train(self, c: ClientContext, params: Tree) -> Outcome:
        """The condensed data, `c.made["images"]`: images `x` and their classes `y`; no model is trained."""
        self._check(c)
        classes = self.condensed(c)
        if not classes.any():
            return Outcome({}, {"images": {}})
        real = select_classes(gather(c), classes)
        first = c.state.get("data") or first_images(c, real, self.ipc, self.mean_of)
        batches = real_batches(c, real, self.real_batch, self.steps)
        return Outcome({}, {"images": self.condense(c, params, first, batches)})

    def _check(self, c: ClientContext) -> None:
        if self.quantise and c.data.source.x.is_floating_point():
            raise InputError(
                f"{self.name}: quantise needs images of 8 bits, got {c.data.source.x.dtype}; use quantise=false"
            )

    @helper
    def condensed(self, c: ClientContext) -> Tensor:
        """[C]: which classes the client condenses, those of which it holds enough samples."""
        return c.counts >= (self.ipc if self.min_class == "ipc" else self.min_class)

    @helper
    def condense(self, c: ClientContext, params: Tree, images: Tree, batches: Iterable[Batch]) -> Tree:
        """The images after a step for each batch of real ones."""
        labels = images["y"]

        def gradient(mover: ClientContext, moving: Tree, batch: Batch) -> Tree:
            net = self.network(mover, params)
            with torch.no_grad():
                real = average_by_class(look(c, net, batch.x), batch.y, c.num_classes)

            def loss(at: Tree) -> Tensor:
                made = average_by_class(look(c, net, at["x"]), labels, c.num_classes)
                return self.matching(mover, real, made)

            grads, value = mover.grad_and_value(loss, moving)
            mover.diagnostics.note("train_loss", value)
            return self.direction(grads)

        return descend(c, images, gradient, batches, self.image_lr, self.image_momentum)

    def upload(self, c: ClientContext, params: Tree) -> Groups:
        """The condensed data; beside the measured bytes the row holds the paper's count, 8 bits a pixel."""
        images = c.made["images"]
        held, shape = int(self.condensed(c).sum()), tuple(images["x"].shape[1:]) if images else ()
        size = count_bytes(c.num_classes, held, self.ipc, shape, self.tables())
        c.diagnostics.note("bytes_up_8bit", float(size))
        return {"data": to_8_bits(c, images) if self.quantise and images else images}

    def keep(self, c: ClientContext, params: Tree) -> Groups:
        """The images, if the next visit continues from them."""
        images = c.made["images"]
        return {"data": images} if self.warm_start and images else {}

    def update(self, s: ServerContext, server: Groups, merged: Groups) -> Groups:
        """The model continues training, on all condensed data of the round."""
        if not merged["data"]:
            return server
        model = fit(
            s, server["model"], merged["data"], self.server_loss(s, merged),
            lr=self.server_lr, momentum=self.server_momentum, batch=self.server_batch, epochs=self.server_epochs,
        )  # fmt: skip
        return {**server, "model": model, "buffers": tree.copy(s.buffers)}
