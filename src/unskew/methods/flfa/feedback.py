"""The feedback rule: the error signal goes down a layer through B instead of the layer's own weight w.

    forward     y = x w^T + b                               the client's own weight
    backward    dL/dw = delta^T x,  dL/db = sum of delta    as in backpropagation
                dL/dx = delta B                             instead of delta w
    B           (||w|| / ||W||) W                           W: the received weight; scaled again before each step

The same holds for convolutions. B itself is never made: its scale is applied to the error signal, so a scale of exactly
1 with W equal to w gives ordinary backpropagation bit for bit, and a step costs no second product.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Unpack

from unskew.base.batch import Batch, Output
from unskew.base.errors import InputError
from unskew.base.torch_private import both_sided_padding
from unskew.base.tree import Tree
from unskew.core.context import ClientContext
from unskew.core.net import Layer, Mode, PassOptions
from unskew.core.observer import Observer
from unskew.methods.flfa.stacking import ConvSettings, stack_conv, stack_linear


class LinearFeedback(torch.autograd.Function):
    """`F.linear` whose input gradient uses `scale * fixed`; weights may have one dimension of clients in front."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, fixed: Tensor, scale: Tensor) -> Tensor:
        """x w^T + b."""
        if weight.dim() == 2:
            return F.linear(x, weight, bias)
        return x @ weight.mT if bias is None else torch.baddbmm(bias.unsqueeze(1), x, weight.mT)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """The weight itself is not needed any more."""
        x, weight, _, fixed, scale = inputs
        ctx.stacked = weight.dim() == 3
        ctx.save_for_backward(x, fixed, scale)

    @staticmethod
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """delta B, delta^T x and the sum of delta."""
        x, fixed, scale = ctx.saved_tensors
        grad_x = (delta * scale.to(delta.dtype)) @ fixed if ctx.needs_input_grad[0] else None  # delta B
        if not ctx.stacked:  # all leading dimensions are samples, as in F.linear
            x, delta = x.reshape(-1, x.shape[-1]), delta.reshape(-1, delta.shape[-1])
        grad_weight = delta.mT @ x if ctx.needs_input_grad[1] else None
        grad_bias = delta.sum(-2) if ctx.needs_input_grad[2] else None
        return grad_x, grad_weight, grad_bias, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *given: Any) -> tuple[Tensor, int]:
        """Many clients at once."""
        return stack_linear(_linear, info.batch_size, in_dims, given)


class ConvFeedback(torch.autograd.Function):
    """`F.conv2d` whose input gradient uses `scale * fixed`."""

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor | None, fixed: Tensor, scale: Tensor, settings: ConvSettings
    ) -> Tensor:
        """The convolution."""
        return F.conv2d(x, weight, bias, *settings)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """The weight itself is not needed any more: its gradient depends on its shape only."""
        x, _, _, fixed, scale, ctx.settings = inputs
        ctx.save_for_backward(x, fixed, scale)

    @staticmethod
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """The transposed convolution of delta with B; weight and bias gradients in the same call."""
        x, fixed, scale = ctx.saved_tensors
        stride, padding, dilation, groups = ctx.settings
        # W where backpropagation has w: only the input's gradient depends on it; its scale may as well come afterwards
        grad_x, grad_weight, grad_bias = torch.ops.aten.convolution_backward(
            delta, x, fixed, [len(fixed)], stride, padding, dilation, False, [0, 0], groups, ctx.needs_input_grad[:3]
        )
        grad_x = grad_x if grad_x is None else grad_x * scale.to(grad_x.dtype)
        return grad_x, grad_weight, grad_bias, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *given: Any) -> tuple[Tensor, int]:
        """Many clients at once."""
        return stack_conv(_conv, info.batch_size, in_dims, given)


class Feedback(Observer):
    """The feedback of one visit: B_l = (||w_l|| / ||W_l||) W_l for each chosen layer l; W_l: received or random."""

    asides = True

    def __init__(self, fixed: Tree, scaling: bool = True) -> None:
        """`fixed`: layer → W_l; until the first look at weights the scale is 1."""
        self._fixed = {layer: value.detach() for layer, value in fixed.items()}
        self._norms: Tree = {}
        self._scaling = scaling
        self._scales = {layer: value.new_ones(()) for layer, value in self._fixed.items()}

    def before_step(self, c: ClientContext, params: Tree, batch: Batch) -> None:
        """Scales to the weights before each step, so that perturbed ones do not enter."""
        # who has no batch left beside others takes no step, and later gradients (FedAS's weight) find its last scale
        self.rescale(params, None if batch.mask is None else batch.mask.any())

    def rescale(self, params: Tree, steps: Tensor | None = None) -> None:
        """Scales to the norms of these weights; `steps`: who takes a step, where many clients work at once."""
        if not self._scaling:
            return
        with torch.no_grad():
            for layer in self._fixed:
                if (weight := params.get(f"{layer}.weight")) is None:
                    continue  # steps on something else than the model, such as a generator
                scale = torch.linalg.vector_norm(weight) / self._norm_of_fixed(layer, weight)
                self._scales[layer] = scale if steps is None else torch.where(steps, scale, self._scales[layer])

    def _norm_of_fixed(self, layer: str, weight: Tensor) -> Tensor:
        """||W_l||, or 1 if that is 0: B_l is then W_l = 0 at any scale."""
        fixed = self._fixed[layer]
        if fixed.stride() != weight.stride():
            # the same memory format: the same order of the sum, hence exactly 1 at w = W; and the convolution's cue
            fixed = self._fixed[layer] = torch.empty_like(weight).copy_(fixed)
            self._norms.pop(layer, None)
        if layer not in self._norms:
            norm = torch.linalg.vector_norm(fixed)
            self._norms[layer] = torch.where(norm > 0, norm, 1.0)
        return self._norms[layer]

    def weight(self, layer: str) -> Tensor:
        """B_l as it is now."""
        return self._scales[layer] * self._fixed[layer]

    def within(self, c: ClientContext) -> ClientContext:
        """The visit with this feedback in every pass; layers that a caller replaces himself stay as he wants them."""
        own: dict[str, Layer] = {layer: partial(self._pass, layer) for layer in self._fixed}

        def forward(params: Tree, x: Tensor, mode: Mode = "train", **options: Unpack[PassOptions]) -> Output:
            if own and torch.is_grad_enabled():
                options["layers"] = {**own, **(options.get("layers") or {})}
            return c.forward(params, x, mode, **options)

        return c.with_fields(forward=forward, observers=(*c.observers, self))

    def _pass(self, name: str, layer: nn.Module, x: Tensor) -> Tensor:
        return apply_feedback(layer, x, self._fixed[name], self._scales[name])


_linear: Any = LinearFeedback.apply
_conv: Any = ConvFeedback.apply


def apply_feedback(layer: Any, x: Tensor, fixed: Tensor, scale: Tensor) -> Tensor:
    """What the layer makes of `x`; the error signal goes down through `scale * fixed`."""
    if type(layer).forward not in (nn.Linear.forward, nn.Conv2d.forward):
        raise InputError(
            f"feedback alignment expected a plain Linear or Conv2d, got {type(layer).__name__} with a forward pass of "
            "its own; choose another layer with select=fixed:NAME"
        )
    weight, bias = layer.weight, layer.bias
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x, weight, fixed = x.to(dtype), weight.to(dtype), fixed.to(dtype)
        bias = None if bias is None else bias.to(dtype)
    if isinstance(layer, nn.Linear):
        return _linear(x, weight, bias, fixed, scale)  # type: ignore[no-any-return]
    x, padding = _pad(layer, x)
    settings = ConvSettings(layer.stride, padding, layer.dilation, layer.groups)
    return _conv(x, weight, bias, fixed, scale, settings)  # type: ignore[no-any-return]


def _pad(layer: Any, x: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """The input with padding that a convolution cannot do by itself, and the padding that is left to do."""
    if layer.padding_mode != "zeros":
        return F.pad(x, both_sided_padding(layer), mode=layer.padding_mode), (0, 0)
    if layer.padding == "valid":
        return x, (0, 0)
    if layer.padding != "same":
        return x, layer.padding
    whole = [dilation * (size - 1) for dilation, size in zip(layer.dilation, layer.kernel_size, strict=True)]
    if any(each % 2 for each in whole):  # one more at the end, as torch does
        x = F.pad(x, (0, whole[1] % 2, 0, whole[0] % 2))
    return x, tuple(each // 2 for each in whole)
