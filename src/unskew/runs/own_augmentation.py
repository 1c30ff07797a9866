"""Tries a user's augmentation before the first round: what executors and resumed runs rely on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unskew.base import seeds
from unskew.core.checks.faults import Fault, naming
from unskew.core.checks.returned import describe, is_dense
from unskew.core.checks.watching import is_foreign
from unskew.data.dataset import Dataset
from unskew.data.transforms import Draws, Transform

SAMPLES, TURNS = 64, 4
"""So many samples are varied so many times."""
TOLERANCE = 1e-5
"""How far a sample may be from the same sample in another batch: rounding, in units of the normalised inputs."""


def try_augmentation(augment: Transform, data: Dataset, seed: int) -> None:
    """Refuses an augmentation that draws from elsewhere, mixes samples, or gives what is no batch."""
    if not is_foreign([augment]) or augment.is_identity:
        return
    x = data.train.x[:SAMPLES]
    with naming(0, "the augmentation", foreign=True), seeds.seed_everything(seed, "augment"):
        for turn in range(TURNS):
            draws, again = (_draw(augment, x, seeds.generator(seed, "augment", turn)) for _ in range(2))
            if not torch.equal(draws.numbers, again.numbers):
                what = "gives other numbers for the same rng, so that no run could be repeated"
                raise Fault(augment, "draw", f"{what}; draw from rng alone, and count nothing")
            whole = _apply(augment, x, draws, data)
            if not torch.equal(whole, _apply(augment, x, draws, data)):
                raise Fault(augment, "apply", "gives something else for the same draws; draw in draw(n, shape, rng)")
            first = len(x) // 2
            cuts = [slice(0, first), slice(first, None)] if first else [slice(0, None)]
            parts = [_apply(augment, x[own], draws[own], data) for own in cuts]
            if (whole - torch.cat(parts)).abs().max() > TOLERANCE:
                what = "mixes the samples of a batch, which are cut otherwise on other executors"
                raise Fault(augment, "apply", f"{what}; let each sample depend on itself and its own draws")


def _draw(augment: Transform, x: Tensor, rng: torch.Generator) -> Draws:
    with seeds.find_draws() as drawn:
        draws: Any = augment.draw(len(x), tuple(x.shape[1:]), rng)
    _refuse_draws(augment, "draw", drawn)
    numbers = getattr(draws, "numbers", None)
    if not isinstance(draws, Draws) or not isinstance(numbers, Tensor) or numbers.shape[:1] != (len(x),):
        got = describe(numbers if isinstance(draws, Draws) else draws)
        wanted = f"Draws(tensor) with a row for each of {len(x)} samples"
        raise Fault(augment, "draw", f"must return {wanted}, got {got}")
    return draws


def _apply(augment: Transform, x: Tensor, draws: Draws, data: Dataset) -> Tensor:
    given, numbers = x.clone(), draws.numbers.clone()
    with seeds.find_draws() as drawn:
        made: Any = augment.apply(given, Draws(numbers), data.mean, data.std)
    _refuse_draws(augment, "apply", drawn)
    if not isinstance(made, Tensor) or not is_dense(made) or made.shape != x.shape or made.dtype != torch.float32:
        wanted = f"normalised samples, float32 of shape {list(x.shape)}"
        raise Fault(augment, "apply", f"must return {wanted}, got {describe(made)}")
    if made.device != x.device:
        raise Fault(augment, "apply", f"gives samples on another device ({made.device}); leave them on {x.device}")
    if not made.isfinite().all():
        raise Fault(augment, "apply", "gives NaN or infinite values")
    if not torch.equal(numbers, draws.numbers):
        raise Fault(augment, "apply", "changes its draws in place; let it change a copy")
    return made


def _refuse_draws(augment: Transform, slot: str, drawn: list[str]) -> None:
    if drawn:
        what = f"draws from the global generator of {drawn[0]}, so that executors differ"
        raise Fault(augment, slot, f"{what}; draw in draw(n, shape, rng), from rng")
