"""What a user's network must be, tried on a few random inputs before a run: one line says what is wrong with it."""

from __future__ import annotations

import copy
import itertools
import logging
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from unskew.base import seeds
from unskew.base.batch import Output
from unskew.base.errors import InputError, one_line
from unskew.base.once import warn_once
from unskew.base.torch_private import BatchNormBase, has_gradient_hook, unsaved_buffers
from unskew.models.base import Model

log = logging.getLogger(__name__)
M = TypeVar("M", bound=nn.Module)


def make_example(shape: tuple[int, ...], size: int = 2) -> Tensor:
    """A few random inputs, always the same ones; the global generator is left alone."""
    return torch.rand(size, *shape, generator=torch.Generator().manual_seed(0))


# ------------------------------------------------------------------------------------- what a module holds


def check_module(what: str, module: nn.Module) -> None:
    """Refuses a module that cannot be trained as it is: compiled, lazy, on a device, not float32, not finite."""
    for layer in module.modules():
        home = type(layer).__module__
        if isinstance(layer, torch.jit.ScriptModule) or home.startswith("torch._dynamo"):
            raise InputError(
                f"{what} is compiled or scripted, so that its parameters cannot be exchanged; hand over the plain "
                "module, as it was before torch.compile or torch.jit"
            )
        if home.startswith("torch.ao.nn.quantized"):
            raise InputError(f"{what} is quantised, so that it cannot be trained; hand it over as it was before")
    for name, value in _list_saved(module):
        if is_lazy(value):
            raise InputError(f"{what}: '{name}' is lazy and has no shape yet; pass one batch through the module first")
        if value.device.type != "cpu":
            raise InputError(
                f"{what}: '{name}' is on device '{value.device}'; hand over a module on the CPU, and say with device "
                "(--device) where clients work"
            )
        if value.is_inference():
            raise InputError(
                f"{what}: '{name}' was made in torch.inference_mode, so it cannot be trained; make it outside"
            )
        _check_numbers(what, name, value)
        if has_gradient_hook(value):
            raise InputError(
                f"{what}: '{name}' has a gradient hook, which runs do not call; take it off, and change gradients in a "
                "method's gradient slot"
            )


def copy_module(what: str, module: M) -> M:
    """A copy of the module; one that cannot be copied is refused."""
    try:
        return copy.deepcopy(module)
    except Exception as error:
        old = "created explicitly by the user" in str(error)  # torch's words for a weight that is computed
        hint = ", such as torch.nn.utils.parametrizations makes of the old weight_norm and spectral_norm" if old else ""
        raise InputError(
            f"{what} cannot be copied ({type(error).__name__}: {one_line(error)[:120]}), but every client works on a "
            f"copy of it; give a network that copy.deepcopy can copy{hint}"
        ) from error


def _list_saved(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters, and buffers that are saved with the module: what travels."""
    yield from module.named_parameters()
    unsaved = {f"{path}.{key}" if path else key for path, own in module.named_modules() for key in unsaved_buffers(own)}
    yield from ((name, value) for name, value in module.named_buffers() if name not in unsaved)


def _check_numbers(what: str, name: str, value: Tensor) -> None:
    # a network in double precision is fine if it converts its inputs: the trial shows it
    if isinstance(value, nn.Parameter) and value.dtype not in (torch.float32, torch.float64):
        raise InputError(
            f"{what}: expected parameters of float32, got {_spell(value.dtype)} in '{name}'; convert it with .float()"
        )
    if value.is_complex():
        raise InputError(f"{what}: expected real numbers, got {_spell(value.dtype)} in '{name}'; make it a constant "
                         "with register_buffer(..., persistent=False)")  # fmt: skip
    if value.is_floating_point() and not torch.isfinite(value).all():
        kind = "initialise it" if isinstance(value, nn.Parameter) else "if it is meant, register it persistent=False"
        raise InputError(f"{what}: '{name}' holds NaN or infinite values; {kind}")


def _spell(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# --------------------------------------------------------------------------------------- what a model does


DRAWS = 16
"""So many more passes are made before a parameter counts as unused."""


def check_model(what: str, model: object, shape: tuple[int, ...], num_classes: int) -> Model:
    """The model, if it is one that runs can train on inputs of this shape; it is left as it was."""
    if not isinstance(model, Model):
        hint = "split it with unskew.split_head(module, 'fc')" if isinstance(model, nn.Module) else "build one"
        raise InputError(f"{what}: expected an unskew.Model (a body and a head), got {type(model).__name__}; {hint}")
    for part in ("body", "head"):
        if not isinstance(getattr(model, part, None), nn.Module):
            raise InputError(f"{what}: expected a module as '{part}', got {type(getattr(model, part, None)).__name__}")
    check_module(what, model)
    if next(model.parameters(), None) is None:
        raise InputError(f"{what} has no parameters, so there is nothing to train; give it a layer that has some")
    with seeds.preserve_global_generator():
        copied = copy_module(what, model)
        _check_input_stays(what, copied, shape, 2)
        _try(what, copied, shape, num_classes)
    _say_tied(what, model)
    return model


def _try(what: str, model: Model, shape: tuple[int, ...], num_classes: int) -> None:
    # one sample is what is left in many a last batch; BatchNorm has no statistics of it unless it kept some
    by_batch = any(isinstance(m, BatchNormBase) and not m.track_running_stats for m in model.modules())
    parameters, buffers = _find_tensors(model)
    numbers = _read_numbers(model)
    for size in (2, 3) if by_batch else (2, 3, 1):
        with torch.no_grad():
            _check_output(what, _call(what, model.eval(), shape, size), size, num_classes)
    held = _read_held(model)  # after a first pass, which may have filled what is only a cache
    with torch.enable_grad():
        logits = _call(what, model.train(), shape, 2).logits
        free = {name: value for name, value in model.named_parameters() if value.requires_grad}
        if free and not logits.requires_grad:
            raise InputError(
                f"{what}: its output does not depend on its parameters; take out no_grad, detach and .data in forward"
            )
        if free:
            unused = _find_unused(what, logits, free)
            for _ in range(DRAWS if unused else 0):  # a layer that is skipped at random is used now and then
                again = _find_unused(what, _call(what, model.train(), shape, 2).logits, free)
                unused = [name for name in unused if name in again]
            if unused:
                warn_once(
                    log,
                    f"{what}: its output does not depend on {', '.join(unused[:3])}{', …' if unused[3:] else ''}, "
                    "which are sent all the same; freeze them with requires_grad_(False), or remove no_grad and detach",
                )
    _check_unchanged(what, parameters, buffers, model)
    _check_repeatable(what, model.eval(), shape)
    _say_counted(what, numbers, held, model)


def _check_repeatable(what: str, model: Model, shape: tuple[int, ...]) -> None:
    """Refuses a network whose output depends on its earlier passes: executors make them in another order."""
    before = {name: value.clone() for name, value in model.named_buffers()}
    found = []
    for _ in range(2):
        seeds.seed_layers(0, "trial")  # what a pass draws it draws again
        with torch.no_grad():
            for name, value in model.named_buffers():
                if name in before and value.shape == before[name].shape:
                    value.copy_(before[name])
            found.append(_call(what, model, shape, 2).logits)
    one, other = found
    if isinstance(one, Tensor) and isinstance(other, Tensor) and not _are_close(one, other):
        raise InputError(
            f"{what} gives another output for the same inputs when it is asked again; in evaluation mode forward must "
            "depend on inputs, parameters and buffers alone, and draw from torch's generator only"
        )


def _are_close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)


def _read_numbers(model: nn.Module) -> dict[str, object]:
    """Plain numbers among the attributes of modules."""
    return {
        f"{path}.{key}".lstrip("."): value
        for path, module in model.named_modules()
        for key, value in vars(module).items()
        if key != "training" and isinstance(value, (bool, int, float))
    }


def _read_held(model: nn.Module) -> dict[str, object]:
    """Tensors among the attributes of modules, and how much their lists, dictionaries and sets hold."""
    return {
        f"{path}.{key}".lstrip("."): value.detach().clone() if isinstance(value, Tensor) else len(value)
        for path, module in model.named_modules()
        for key, value in _list_held(module)
    }


def _list_held(module: nn.Module) -> Iterator[tuple[str, Tensor | list[object] | dict[object, object] | set[object]]]:
    for key, value in vars(module).items():
        if key not in _OWN_OF_TORCH and isinstance(value, (Tensor, list, dict, set, deque)):
            yield key, value  # type: ignore[misc]
    yield from ((key, value) for key in unsaved_buffers(module) if (value := getattr(module, key)) is not None)


_OWN_OF_TORCH = frozenset(vars(nn.Module()))
"""What every module holds: its layers, parameters, buffers and hooks."""


def _is_other(now: object, before: object) -> bool:
    if isinstance(now, Tensor) and isinstance(before, Tensor):
        return now.shape != before.shape or now.dtype is not before.dtype or not torch.equal(now, before)
    return repr(now) != repr(before)


def _say_counted(what: str, numbers: dict[str, object], held: dict[str, object], model: nn.Module) -> None:
    """Says that forward changes an attribute, which neither travels nor is saved: its use cannot be seen."""
    every = ((numbers, _read_numbers(model)), (held, _read_held(model)))
    changed = [name for before, now in every for name in now if _is_other(now[name], before.get(name))]
    if changed:
        warn_once(
            log,
            f"{what} changes its attribute '{changed[0]}' in forward, which each process counts for itself; if the "
            "output depends on it, executors give different numbers: make it a buffer, changed in place",
        )


def check_input_stays(what: str, model: nn.Module, shape: tuple[int, ...], size: int) -> None:
    """The same of batches as large as those of the run; the module is left as it was."""
    with seeds.preserve_global_generator():
        _check_input_stays(what, copy_module(what, model), shape, size)


def _check_input_stays(what: str, model: nn.Module, shape: tuple[int, ...], size: int) -> None:
    """Others see a batch, too: refuses a network that changes it, be it only where it is below 0, or in training."""
    example = make_example(shape, size)
    for before, training in itertools.product((example, example - 0.5), (False, True)):
        x = before.clone()
        # what fails here fails again below, or takes no such numbers; tried on a copy, as a pass may leave traces
        with suppress(Exception), torch.no_grad():
            copy.deepcopy(model).train(training)(x)
        if not torch.equal(x, before):
            raise InputError(
                f"{what} changes its input in place, which others see, too; work on x.clone() in forward, or without "
                "inplace=True in what comes first"
            )


def _call(what: str, model: Model, shape: tuple[int, ...], size: int) -> Output:
    try:
        out = model(make_example(shape, size))
    except Exception as error:
        raise explain_failure(what, shape, size, error) from error
    if not isinstance(out, Output):
        raise InputError(f"{what} must return unskew's Output(logits, features), got {type(out).__name__}")
    return out


def explain_failure(what: str, shape: tuple[int, ...], size: int, error: Exception) -> InputError:
    """The line of a network that fails on so many inputs of this shape."""
    inputs = f"inputs of shape {shape}" if size == 2 else f"a batch of {size}, inputs of shape {shape}"
    text = f"{type(error).__name__}: {one_line(error)[:300]}"
    hint = "; inputs are float32, convert the network with .float()" if "dtype" in text else ""
    return InputError(f"{what} fails on {inputs}: {text}{hint}")


def _check_output(what: str, out: Output, size: int, num_classes: int) -> None:
    for part, value in zip(("logits", "features"), out[:2], strict=True):
        if not isinstance(value, Tensor) or not value.is_floating_point():
            got = _spell(value.dtype) if isinstance(value, Tensor) else type(value).__name__
            raise InputError(f"{what}: expected {part} as a tensor of real numbers, got {got}; return a plain tensor")
    logits, features = out[:2]
    if logits.shape != (size, num_classes) or features.ndim != 2 or len(features) != size:
        raise InputError(
            f"{what}: for {size} inputs expected logits of shape ({size}, {num_classes}) and flat features, got "
            f"{tuple(logits.shape)} and {tuple(features.shape)}; give the head one output per class, flat inputs"
        )


def _find_unused(what: str, logits: Tensor, free: dict[str, nn.Parameter]) -> list[str]:
    """Parameters on which the output does not depend."""
    if not logits.requires_grad:
        return list(free)
    try:
        grads = torch.autograd.grad(logits.sum(), list(free.values()), allow_unused=True)
    except Exception as error:
        raise InputError(f"{what} cannot be differentiated: {type(error).__name__}: {one_line(error)[:300]}") from error
    for name, grad in zip(free, grads, strict=True):
        if grad is not None and grad.layout is not torch.strided:
            raise InputError(f"{what}: the gradient of '{name}' is sparse, and methods compute with dense ones; give "
                             "its layer sparse=False")  # fmt: skip
    return [name for name, grad in zip(free, grads, strict=True) if grad is None]


Found = dict[str, tuple[Tensor, Tensor]]
"""Name → the tensor itself and a copy of it."""


def _find_tensors(model: nn.Module) -> tuple[Found, Found]:
    parameters: Found = {name: (value, value.detach().clone()) for name, value in model.named_parameters()}
    return parameters, {name: (value, value.detach().clone()) for name, value in model.named_buffers()}


def _check_unchanged(what: str, parameters: Found, buffers: Found, model: nn.Module) -> None:
    now = dict(model.named_parameters())
    kept = dict(model.named_buffers())
    saved = model.state_dict().keys()
    for name in (*now, *kept):
        if name not in parameters and name not in buffers and name in saved:
            kind = "parameter" if name in now else "buffer"
            raise InputError(
                f"{what} makes its {kind} '{name}' in forward, where it would be neither sent nor kept; make it in "
                "__init__"
            )
    for name, (own, before) in parameters.items():
        if now.get(name) is not own or not torch.equal(own, before):
            raise InputError(
                f"{what} changes its parameter '{name}' in forward, which only training may do; "
                "compute with a changed copy instead"
            )
    for name, (buffer, _) in buffers.items():
        if kept.get(name) is not buffer:
            raise InputError(
                f"{what} puts another tensor in the place of its buffer '{name}' in forward, which would be lost; "
                f"change it in place, such as self.{name.rpartition('.')[2]}.copy_(...)"
            )


def _say_tied(what: str, model: Model) -> None:
    body = {id(value): name for name, value in model.body.named_parameters()}
    tied = [(name, body[id(value)]) for name, value in model.head.named_parameters() if id(value) in body]
    if tied:
        own, other = tied[0]
        warn_once(
            log, f"{what}: head.{own} is tied to body.{other} and counts as the body's, also where heads are personal"
        )
