"""Condensing data: a few synthetic images per class, moved until a network sees them as it sees the real ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from unskew.base import progress, tree
from unskew.base.batch import Batch, Output
from unskew.base.tree import Tree
from unskew.core.context import ClientContext, LocalGradient, ServerContext
from unskew.core.jobs import Reply
from unskew.core.reducers import concat
from unskew.data.batches import LocalData, Pipeline, batch_bounds
from unskew.data.dataset import Samples
from unskew.data.transforms import Unvaried

IMAGES = ("x",)
"""What condensation moves: the tensor `x` of a tree; `y` are its classes."""


# ------------------------------------------------------------------------------------ what a network sees


def see(c: ClientContext, params: Tree, x: Tensor) -> Output:
    """Logits and features with BatchNorm's statistics of these images, which are not remembered (sheet E7)."""
    if len(x) > 1 or not c.has_batchnorm:
        return c.forward(params, x, "batch")
    twice = c.forward(params, torch.cat([x, x]), "batch")  # torch takes no statistics of one image; two alike have them
    return Output(twice.logits[:1], twice.features[:1])


def class_means(values: Tensor, y: Tensor, num_classes: int) -> Tensor:
    """[C, D]: the mean of the rows of each class; zeros for a class that has none."""
    hot = (y.unsqueeze(-1) == torch.arange(num_classes, device=y.device)).to(values.dtype)
    return hot.T @ values / hot.sum(0).clamp(min=1).unsqueeze(1)


def by_class(out: Output, y: Tensor, num_classes: int) -> Output:
    """Mean logits [C, C] and mean features [C, D] of each class."""
    return Output(class_means(out.logits, y, num_classes), class_means(out.features, y, num_classes))


def gap(real: Tensor, made: Tensor) -> Tensor:
    """The squared distances of the class means, summed over the classes; an absent class has none."""
    return (real - made).square().sum()


def perturbed(params: Tree, noise: Tree, rho: float) -> Tree:
    """w + noise, the noise shortened to length rho if it is longer."""
    return tree.add_scaled(params, noise, (rho / (tree.norm(noise) + 1e-12)).clamp(max=1))


def clipped(grads: Tree, longest: float) -> Tree:
    """The gradient, shortened to this length if it is longer; 0: as it is."""
    return tree.scale(grads, (longest / (tree.norm(grads) + 1e-6)).clamp(max=1)) if longest else grads


# ------------------------------------------------------------------------------------------- the client


def gathered(c: ClientContext) -> Batch:
    """All of the client's samples as one batch: normalised, not augmented."""
    parts = list(c.passes())
    x, y, positions = (torch.cat([part[i] for part in parts]) for i in range(3))  # type: ignore[misc]
    return Batch(x, y, positions)


def held_classes(batch: Batch) -> Tensor:
    """The classes that occur, in order."""
    return torch.nonzero(torch.bincount(batch.y)).flatten()


def first_images(c: ClientContext, real: Batch, ipc: int, mean_of: int) -> Tree:
    """`ipc` images of each class held: each the mean of up to `mean_of` of its images, drawn without replacement (E8).

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


def condense(
    c: ClientContext, images: Tree, gradient: LocalGradient, batches: Iterable[Batch], lr: float, momentum: float
) -> Tree:
    """The images after one step of SGD along `gradient(c, images, batch)` for each batch; nothing else is moved."""
    settings = replace(c.settings, lr=lr, momentum=momentum, weight_decay=0.0)
    # whoever watches local training expects parameters of the model, which here stay as they are
    mover = replace(c, settings=settings, trainable=IMAGES, observers=(), before_step=())
    moved = c.steps.descend(mover, {"x": images["x"]}, gradient, batches)
    return {"x": moved["x"].contiguous(), "y": images["y"]}


# -------------------------------------------------------------------------------------- between the two


def in_8_bits(c: ClientContext, data: Tree) -> Tree:
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


def up_bytes(num_classes: int, classes_held: int, ipc: int, shape: tuple[int, ...], tables: int = 2) -> int:
    """Bytes a client sends by the paper's count: 1 per pixel and channel, 4 per entry of each C x C table."""
    return classes_held * ipc * math.prod(shape) + tables * 4 * num_classes**2


# ------------------------------------------------------------------------------------------- the server


def fit(s: ServerContext, params: Tree, data: Tree, loss: Callable[[Tree, Batch], Tensor], **settings: Any) -> Tree:
    """Trains the global model on condensed data; `settings` as of a client. The losses go into the round's record."""
    at_server = s.aside(weight_decay=0.0, steps=None, drop_last=False, shuffle=True, **settings)
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
