"""A whole model of a client's own, which it keeps between visits with its BatchNorm statistics.

It lives in the client's state under a name of its method's: `NAME/model`, `NAME/buffers`, `NAME/visited`. Before the
first visit it is the initial model; a client that was never visited is tested with the received model instead.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unskew.base.tree import Groups, Tree
from unskew.core.context import STATISTICS, ClientContext, Outcome


def choose(mine: Tensor, own: Tree, received: Tree) -> Tree:
    """The client's own values where `mine` says so, else the received ones; what it has none of is received."""
    return {name: torch.where(mine, own[name], value) if name in own else value for name, value in received.items()}


def begin(c: ClientContext, name: str) -> Groups:
    """For `init_client`: the initial model, not yet trained by this client."""
    return keep(c, name, c.initial["model"], c.initial["buffers"], visited=False)


def keep(c: ClientContext, name: str, params: Tree, buffers: Tree, visited: bool = True) -> Groups:
    """For `keep`: the model as it is now."""
    kept = {f"{name}/model": c.drop_fixed(params)}
    if buffers and c.buffer_policy != "reset":
        kept[f"{name}/buffers"] = buffers
    kept[f"{name}/visited"] = {"yes": torch.tensor(visited, device=next(iter(params.values())).device)}
    return kept


def recall(c: ClientContext, name: str) -> tuple[Tree, Tree]:
    """The client's model, and the statistics that belong to it."""
    return c.add_fixed(c.state[f"{name}/model"]), c.state.get(f"{name}/buffers", c.received["buffers"])


def use(c: ClientContext, name: str) -> Outcome:
    """For `personalise`: the client's model, or the received one if it was never visited."""
    (model, buffers), seen = recall(c, name), c.state[f"{name}/visited"]["yes"]
    chosen, statistics = choose(seen, model, c.received["model"]), choose(seen, buffers, c.received["buffers"])
    return Outcome(chosen, {STATISTICS: statistics})
