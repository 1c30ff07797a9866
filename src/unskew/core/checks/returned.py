"""What slots return, checked where the loop takes it: forgotten returns, trees for groups, wrong names and shapes.

Each check says what was expected and what came (`Wrong`); who asked the slot adds whose slot it was. Tensors that still
have a graph lose it here, so that no visit keeps another's in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from unskew.base.torch_private import get_unwrapped, is_batched
from unskew.base.tree import Groups, Tree
from unskew.core.checks.faults import Fault
from unskew.core.context import ClientContext, Diagnostics, Noter, Outcome, check_note, refuse_shared
from unskew.core.jobs import PREVIOUS, WIRE

if TYPE_CHECKING:
    from unskew.core.context import LocalGradient
    from unskew.core.method import Method
    from unskew.core.reducers import Reducer


class Wrong(Exception):
    """What was expected, and what came."""


class Asked(NamedTuple):
    """A slot's answer is judged by who gave it and what it was asked with."""

    method: Method
    own: frozenset[str]
    """The slots that are not the defaults."""
    context: Any
    """The slot's context."""
    server: Groups
    """The server's state before, where there is one."""


# --------------------------------------------------------------------------------------------- kinds of values


def as_tree(value: Any, what: str = "a tree (parameter names → tensors)") -> Tree:
    """The tree, its tensors without a graph."""
    if not isinstance(value, dict):
        raise Wrong(f"must return {what}, got {describe(value)}")
    for name, tensor in value.items():
        if not isinstance(name, str):
            raise Wrong(f"must return {what}, whose names are strings, got the name {name!r}")
        if not isinstance(tensor, Tensor):
            raise Wrong(f"must return {what}, got {describe(tensor)} under '{name}'{_advise(tensor)}")
        if tensor.is_nested:
            raise Wrong(f"must return {what}, got a nested tensor under '{name}'; pad it, or name its parts one by one")
        if tensor.layout is not torch.strided:
            raise Wrong(f"must return {what}, got a sparse tensor under '{name}'; make it dense with .to_dense()")
        if tensor.is_meta:
            raise Wrong(f"must return {what}, got a tensor without data (device meta) under '{name}'")
    if any(tensor.requires_grad for tensor in value.values()):
        return {name: tensor.detach() for name, tensor in value.items()}
    return value


def as_groups(value: Any) -> Groups:
    """Groups, their tensors without a graph."""
    what = 'groups (named trees, such as {"delta": tree})'
    if not isinstance(value, dict):
        raise Wrong(f"must return {what}, got {describe(value)}")
    found: Groups = {}
    for name, own in value.items():
        if not isinstance(name, str):
            raise Wrong(f"must return {what}, whose names are strings, got the name {name!r}")
        if isinstance(own, Tensor):
            raise Wrong(f"must return {what}, got a tree with the tensor '{name}'; give the tree a name")
        try:
            found[name] = as_tree(own)
        except Wrong as wrong:
            raise Wrong(
                f"must return {what}; the group '{name}' {str(wrong).replace('must return', 'must be')}"
            ) from None
    return found if any(found[name] is not value[name] for name in found) else value


def as_state(value: Any) -> Groups:
    """Groups that a checkpoint can hold."""
    from unskew.base import storage  # takes long to import, and lists of methods need none

    state = as_groups(value)
    for tree in state.values():
        for name, tensor in tree.items():
            if not storage.can_hold(tensor.dtype):
                kind = _kind(tensor)
                raise Wrong(f"must return a state of real numbers, integers or booleans, got {kind} in '{name}'")
    return state


def _advise(value: Any) -> str:
    if isinstance(value, (int, float)):
        return f"; make it a tensor, torch.tensor({value})"
    return "; trees are not nested: make it a group of its own" if isinstance(value, dict) else ""


def describe(value: Any) -> str:
    """A value in a few words."""
    if value is None:
        return "None (is a return missing?)"
    if isinstance(value, Tensor):
        kind = "" if value.dtype is torch.float32 else f" ({_kind(value)})"
        what = "a tensor" if value.layout is torch.strided else "a sparse tensor"
        return f"{what} of shape {list(value.shape)}{kind}{' without data (device meta)' if value.is_meta else ''}"
    if isinstance(value, nn.Module):
        return f"a module ({type(value).__name__}); its parameters are a tree"
    if isinstance(value, dict):
        inside = next(iter(value.values()), None)
        kind = "a tree" if isinstance(inside, Tensor) else "groups" if isinstance(inside, dict) else "a dict"
        return f"{kind} with {_list(value)}"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


def is_dense(value: Tensor) -> bool:
    """Whether it holds a number for each of its entries."""
    return value.layout is torch.strided and not value.is_meta


def _list(names: Any) -> str:
    shown = [str(name) for name in names]
    return (", ".join(shown[:4]) + (", …" if len(shown) > 4 else "")) or "nothing in it"


def fit(value: Tree, like: Tree, what: str, whole: bool = True) -> None:
    """Names, shapes and types as those of `like`; all of its names where it must be `whole`."""
    if unknown := value.keys() - like.keys():
        raise Wrong(f"returns {what} with the unknown name '{min(unknown)}', expected {_list(like)}")
    if whole and (missing := like.keys() - value.keys()):
        raise Wrong(f"returns {what} without {_list(sorted(missing))}")
    for name, tensor in value.items():
        other = like[name]
        if tensor.shape != other.shape:
            raise Wrong(
                f"returns {what} in which '{name}' must have shape {list(other.shape)}, got {list(tensor.shape)}"
            )
        if tensor.dtype is not other.dtype:
            raise Wrong(
                f"returns {what} in which '{name}' must be {_kind(other)}, got {_kind(tensor)}; "
                f"convert it with .to({other.dtype})"
            )
        if tensor.device != other.device:
            raise Wrong(f"returns {what} in which '{name}' must be on {other.device}, got {tensor.device}")


def _kind(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


# ------------------------------------------------------------------------------------------- the server's slots


def check_init(asked: Asked, value: Any) -> Groups:
    """The state that `download` and `publish` need, if they are the defaults."""
    state = as_state(value)
    if "download" in asked.own and "publish" in asked.own:
        return state
    for group in ("model", "buffers"):
        if group not in state:
            raise Wrong(f"must return 'model' and 'buffers', of which messages are made, got {_list(state)}")
        fit(state[group], asked.context.initial[group], f"'{group}'")
    return state


def check_state(asked: Asked, value: Any) -> Groups:
    """The server's next state: model and buffers as they were, with other values."""
    state = as_state(value)
    for group in ("model", "buffers"):
        if group in asked.server:
            if group not in state:
                raise Wrong(f"must return the whole state, and forgets '{group}'; begin with {{**server, …}}")
            fit(state[group], asked.server[group], f"'{group}'")
    return state


def check_message(asked: Asked, value: Any) -> Groups:
    """A message with the shared part of the model."""
    message, initial = as_groups(value), asked.context.initial["model"]
    if "model" not in message:
        if "receive" in asked.own:
            return message
        raise Wrong(f"must return a message with the group 'model', got {_list(message)}")
    model = message["model"]
    if asked.method.division.by_name:
        fit(model, initial, "'model'", whole=False)
        keeps = {"init_client", "keep", "start"} & asked.own
        missing = asked.method.shared(asked.context, initial).keys() - model.keys()
        if missing and not keeps:
            raise Wrong(
                f"returns 'model' without {_list(sorted(missing))}, which no client keeps; declare it `personal`"
            )
    elif unknown := model.keys() - initial.keys():
        raise Wrong(f"returns 'model' with the unknown name '{min(unknown)}', expected {_list(initial)}")
    return message


def check_brief(asked: Asked, value: Any) -> Groups:
    """What is added to a message; a model among it takes the place of the message's."""
    brief = as_groups(value)
    return check_message(asked, brief) if "model" in brief else brief


def check_published(asked: Asked, value: Any) -> Groups:
    """The whole global model; without BatchNorm the buffers may be left out."""
    found, initial = as_groups(value), asked.context.initial
    if "model" not in found:
        raise Wrong(f"must return the global model, groups 'model' and 'buffers', got {_list(found)}")
    found = {"buffers": {}, **found} if not initial["buffers"] else found
    if "buffers" not in found:
        raise Wrong(f"must return 'buffers' beside 'model': BatchNorm's statistics; got {_list(found)}")
    for group in ("model", "buffers"):
        fit(found[group], initial[group], f"'{group}'")
        made = [value for name, value in found[group].items() if value is not asked.server.get(group, {}).get(name)]
        if not all(bool(torch.isfinite(value).all()) for value in made):  # those of the server's state are
            raise Wrong(f"gives NaN or infinite numbers (group '{group}')")
    return found


def check_merged(reducer: Reducer, value: Any, sent: Tree) -> None:
    """What the default `update` adds to the model: a tree with the names, shapes and types that clients sent."""
    try:
        fit(as_tree(value), sent, "a tree")
    except Wrong as wrong:
        raise Fault(
            reducer, "result", f"{wrong}; the default `update` adds it to the model: define update, or reduce otherwise"
        ) from None


def check_alike(group: str, value: Tree, known: Tree, start: int) -> None:
    """Shapes (from dimension `start` on) and types as clients before sent them: reducers neither broadcast nor convert.

    Where they are joined along the first dimension, there must be one.
    """
    for name, tensor in value.items():
        what, other = f"sends the group '{group}' in which '{name}'", known.get(name, tensor)
        if tensor.dim() < start:
            raise Wrong(f"{what} must have a first dimension, along which clients' tensors are joined, got shape []")
        if tensor.dim() != other.dim() or tensor.shape[start:] != other.shape[start:]:
            free = " but for the first dimension" * bool(start)
            raise Wrong(f"{what} must have shape {list(other.shape)}{free}, as the clients before sent it, "
                        f"got {list(tensor.shape)}")  # fmt: skip
        if tensor.dtype is not other.dtype:
            raise Wrong(f"{what} must be {_kind(other)}, as the clients before sent it, got {_kind(tensor)}")


# -------------------------------------------------------------------------------------------- a client's slots


def check_kept(asked: Asked, value: Any) -> Groups:
    """A client's state after a visit, with its own part of the model where the defaults read it."""
    kept, c = check_names_kept(asked, value), asked.context
    if not asked.method.division.by_name or "receive" in asked.own or {"start", "personalise"} <= asked.own:
        return kept
    own = set(c.trainable) - asked.method.shared(c, c.initial["model"]).keys()
    if missing := sorted(own - kept.get("personal", {}).keys()):
        raise Wrong(f"must return the client's own part of the model in the group 'personal', and forgets "
                    f"{_list(missing)}; begin with {{**super().keep(c, params), …}}")  # fmt: skip
    return kept


def check_names_kept(asked: Asked, value: Any) -> Groups:
    """A client's state: any groups whose names are free."""
    kept, initial = as_state(value), asked.context.initial["model"]
    for name in kept:
        if name.startswith((WIRE, PREVIOUS)):
            raise Wrong(f"must not name a group '{name}': names that begin with '{WIRE}' or '{PREVIOUS}' are taken")
    personal = {name: own for name, own in kept.get("personal", {}).items() if name in initial}
    fit(personal, initial, "'personal'", whole=False)
    return kept


def check_first_state(asked: Asked, value: Any) -> Groups:
    """The same before the first visit, when nothing can have diverged yet."""
    kept = check_names_kept(asked, value)
    for group, own in kept.items():
        for name, tensor in own.items():
            plain = get_unwrapped(tensor) if is_batched(tensor) else tensor
            if not torch.isfinite(plain).all():
                raise Wrong(f"must return a state of finite numbers, got NaN or infinity in '{group}/{name}'")
    return kept


def check_context(asked: Asked, value: Any) -> ClientContext:
    """The visit's context."""
    if not isinstance(value, ClientContext):
        raise Wrong(f"must return a context, c itself or c.with_made(…), got {describe(value)}")
    as_groups(value.made)
    return value


def check_params(asked: Asked, value: Any, reader: str) -> Tree | Outcome:
    """Parameters of the whole model, or an `Outcome`; something else where the slot that reads it is no default."""
    params, made = value if isinstance(value, Outcome) else (value, None)
    params, model = as_tree(params, "parameters (names → tensors) or an Outcome"), asked.context.received["model"]
    if reader not in asked.own or params.keys() & model.keys():
        fit(params, model, "parameters")
    return params if made is None else Outcome(params, as_groups(made))


def check_reply(asked: Asked, value: Any) -> Groups:
    """What is sent: a difference fits to the message's model, and what the default `update` reads is there."""
    reply, c = as_groups(value), asked.context
    default = "update" not in asked.own
    if default:
        if "delta" not in reply:
            raise Wrong(f"must return the group 'delta', which the server adds to its model, got {_list(reply)}")
        if c.buffer_policy == "average" and c.buffers and "buffers" not in reply:
            raise Wrong("must return 'buffers' beside 'delta': BatchNorm's statistics, tree.copy(c.buffers)")
    if "delta" in reply and "model" in c.message:
        model = c.message["model"]
        delta = {name: own for name, own in reply["delta"].items() if default or name in model}
        fit(delta, model, "'delta'", whole=False)
        missing = asked.method.shared(c, model).keys() & set(c.trainable) - delta.keys()
        if default and missing:
            raise Wrong(f"returns 'delta' without {_list(sorted(missing))}, which the server would leave as it was; "
                        "send all that is shared, or define update")  # fmt: skip
    if "buffers" in reply:
        fit(reply["buffers"], c.buffers, "'buffers'", whole=False)
    return reply


def check_weight(asked: Asked, value: Any) -> Any:
    """A number, or a tensor without dimensions."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    plain = isinstance(value, Tensor) and value.dtype is not torch.bool and not value.is_complex()
    if number or (plain and value.dim() == 0 and not value.is_meta):
        return value.detach() if isinstance(value, Tensor) else torch.tensor(float(value), dtype=torch.float64)
    raise Wrong(f"must return a number or a tensor of one without dimensions, got {describe(value)}")


def check_scores(asked: Asked, value: Any, x: Tensor) -> Tensor:
    """[B, C] scores of a batch."""
    wanted = [len(x), asked.context.num_classes]
    if (
        not isinstance(value, Tensor)
        or not is_dense(value)
        or not (list(value.shape) == wanted and value.is_floating_point())
    ):
        raise Wrong(f"must return scores, a floating tensor of shape {wanted}, got {describe(value)}")
    return value.detach()


CHECKS: dict[str, Callable[..., Any]] = {
    "init": check_init,
    "download": check_message,
    "init_client": check_first_state,
    "prepare": check_context,
    "survey": lambda asked, value: as_groups(value),
    "digest": check_state,
    "brief": check_brief,
    "start": lambda asked, value: check_params(asked, value, "train"),
    "train": lambda asked, value: check_params(asked, value, "upload"),
    "upload": check_reply,
    "keep": check_kept,
    "weight": check_weight,
    "update": check_state,
    "publish": check_published,
    "personalise": lambda asked, value: check_params(asked, value, "predict"),
    "predict": check_scores,
}
"""By slot. `gradient`, `loss`, `criterion`, `correction` and terms are checked in each step, below; `weigh` in the
round loop; `own_terms` and `remodel` before the run."""

# --------------------------------------------------------------------------------------------- in each local step


def check_loss(part: Any, slot: str, value: Any) -> Tensor:
    """A loss is a tensor without dimensions."""
    if isinstance(value, Tensor) and not value.dim() and not value.is_meta:
        return value
    if part is None:
        raise Fault(
            None,
            "",
            f"asks for the gradient of a loss which must be a tensor without dimensions, got {describe(value)}",
        )
    raise Fault(part, slot, f"must return a tensor without dimensions (a mean over the batch: batch.mean), "
                f"got {describe(value)}")  # fmt: skip


class Detached(Fault):
    """A loss that no gradient can be taken of."""


def refuse_detached(value: Tensor) -> None:
    """A fault where a loss has no graph."""
    if not value.requires_grad:
        kind = "" if value.is_floating_point() else f"{_kind(value)}, "
        raise Detached(None, "", f"must return a loss that depends on the parameters it was given, got one without a "
                       f"gradient ({kind}detached or made of numbers)")  # fmt: skip


def blame_loss(method: Method, fault: Detached) -> Fault:
    """The same, of the slot that made the loss."""
    return Fault(method, find_loss_slot(method), fault.what)


def find_loss_slot(method: Method) -> str:
    """Which slot makes a method's loss: `loss`, or `criterion` where that is the default."""
    own = getattr(type(method).loss, "__module__", "")
    return "criterion" if own == "unskew.core.method" else "loss"


def check_correction(method: Method, grads: Tree, more: Any) -> None:
    """A correction fits to the gradient that it is added to, whole: what it lacked would not be trained."""
    try:
        as_tree(more)
        fit({name: more[name] for name in grads if name in more}, grads, "a tree")
    except Wrong as wrong:
        raise Fault(method, "correction", str(wrong)) from None


def check_direction(gradient: LocalGradient, grads: Any, params: Tree, trainable: tuple[str, ...]) -> None:
    """The direction of a step has the names, shapes and types of parameters; nothing is broadcast.

    The slot's own has all that are trained; functions that a method hands to `sgd` may name fewer.
    """
    try:
        for name, grad in grads.items():
            weight = params[name]
            alike = grad.shape == weight.shape and grad.dtype is weight.dtype and grad.device == weight.device
            if not (alike and grad.layout is torch.strided):
                break
        else:
            if grads and not (_is_own_gradient(gradient) and any(name not in grads for name in trainable)):
                return
    except (AttributeError, KeyError, TypeError):
        pass
    owner: Any = getattr(gradient, "__self__", None)
    try:
        fit(as_tree(grads), params, "a tree", whole=False)
        if not grads:
            raise Wrong("must return a tree with some of the parameters' names, got nothing in it")
        missing = [name for name in trainable if name not in grads]
        raise Wrong(f"returns a tree without {_list(missing)}, which would not be trained; declare them `frozen`, or "
                    "give zeros")  # fmt: skip
    except Wrong as wrong:
        whose = "" if owner is not None else "takes steps along a function which "
        raise Fault(owner, getattr(gradient, "__name__", ""), f"{whose}{wrong}") from None


def _is_own_gradient(gradient: Any) -> bool:
    """Whether it is the slot `gradient` of somebody's method."""
    owner = getattr(gradient, "__self__", None)
    own = owner is not None and getattr(owner, "gradient", None) == gradient
    return own and gradient.__module__.partition(".")[0] != "unskew"


class ServerDiagnostics(Diagnostics):
    """Those of the server's own context, which no row holds; what `aside` counts is the slot's to read."""

    def note(self, name: str, value: Tensor | float) -> None:
        """Refuses what would go nowhere; the loss is noted by whoever takes a gradient."""
        if name != "train_loss":
            raise Fault(None, "", f"notes '{name}' at the server, where s.diagnostics is not recorded; write "
                        f's.record["{name}"] = …')  # fmt: skip


class CheckedDiagnostics(Diagnostics):
    """Diagnostics where somebody's code notes numbers."""

    def __init__(self) -> None:
        super().__init__()
        self._owners: dict[str, Noter] = {}

    def make_empty(self) -> CheckedDiagnostics:
        """The same kind of diagnostics, with nothing counted yet."""
        return CheckedDiagnostics()

    def note(self, name: str, value: Tensor | float) -> None:
        """Adds one observation to the mean kept under this name; refuses what has no mean or would hide a key."""
        check_note(name, value)
        refuse_shared(self._owners, name, self.noting)
        super().note(name, value)
