"""Tests at the end of a round, before the new model is sent, as the official code of FedAS makes them.

    client                          is tested with
    trained in this round           the model that it trained
    absent, dropped out, left out   the model as it was sent when this round began

The server keeps its state of the round's start beside the new one, a client the round of its training. In a round in
which nothing was updated the state is still that of its start.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unskew.base.tree import Groups
from unskew.core.context import ClientContext, ServerContext

START = "start/"
"""Begins the names of groups of the server's state that are as they were when the round began."""
ROUND = f"{START}round"
TRAINED = "trained"
"""The group of a client's state that says in which round it was trained."""


# ----------------------------------------------------------------------------------------- at the server


def current(server: Groups) -> Groups:
    """The server's state without what is kept of the round's start."""
    return {name: group for name, group in server.items() if not name.startswith(START)}


def remember_start(s: ServerContext, server: Groups, found: Groups) -> Groups:
    """The state that `update` or `digest` made of `server`, and beside it the one that this round began with."""
    began = {f"{START}{name}": group for name, group in at_start(s, server).items()}
    return {**current(found), **began, ROUND: {"number": torch.tensor(s.round)}}


def at_start(s: ServerContext, server: Groups) -> Groups:
    """The server's state as this round began with it, in which messages were made."""
    if ROUND not in server or int(server[ROUND]["number"]) != s.round:  # nothing was changed since
        return current(server)
    began = {name.removeprefix(START): group for name, group in server.items() if name.startswith(START)}
    return {name: group for name, group in began.items() if name != "round"}


def to_send(s: ServerContext, server: Groups) -> Groups:
    """The state of which messages are made: for tests that of the round's start."""
    return at_start(s, server) if s.testing else current(server)


# ------------------------------------------------------------------------------------------ at a client


def note_training(c: ClientContext, round_: int) -> Groups:
    """What a client's state says of its last training; before the first one the round is -1."""
    return {TRAINED: {"round": torch.tensor(round_, device=next(iter(c.initial["model"].values())).device)}}


def is_trained(c: ClientContext) -> Tensor:
    """Whether the client was trained in this round: a tensor, for many clients at once."""
    return c.state[TRAINED]["round"] == c.round
