"""The whole field as one word: `all`, `all-global`, `all-personal` stand for the registered methods at their defaults.

A plugin's methods are among them once it is loaded. Wrappers go around FedAvg. What takes hours with the paper's
defaults gets a small budget, and what does not fit to the run (or needs arguments) is left out; both are said.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import overload

from unskew.base.errors import InputError, one_line
from unskew.base.registry import construct
from unskew.core.checks.asking import ask_server
from unskew.core.method import Method, methods
from unskew.core.per_client import MemoryStore
from unskew.data.dataset import Dataset
from unskew.methods.catalogue import at_defaults, by_family, output_of, shorten
from unskew.runs import building
from unskew.runs.config import Run

log = logging.getLogger(__name__)

WORDS = ("all", "all-global", "all-personal")
SAME = ("own",)
"""Around FedAvg it is fedavg_p."""
ABOVE, TO = 100, 20
"""Who repeats something in a visit more than 100 times by default (local training: 200 epochs) does so 20 times."""
CONDENSING = {"steps": 50, "ipc": 10, "server_lr": 0.01, "server_epochs": 100}
"""Instead of 1000 steps for 50 images a class and 500 epochs at the server."""


@dataclass(frozen=True)
class Field(Sequence[Method]):
    """The methods of a comparison; those that a word stands for may be left out, and `notes` say so."""

    methods: tuple[Method, ...]
    optional: frozenset[str] = frozenset()
    """Methods that nobody named one by one."""
    notes: tuple[str, ...] = field(default=(), compare=False)

    @overload
    def __getitem__(self, index: int) -> Method: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Method]: ...
    def __getitem__(self, index: int | slice) -> Method | Sequence[Method]:
        return self.methods[index]

    def __len__(self) -> int:
        return len(self.methods)


def is_word(text: object) -> bool:
    """Whether this stands for many methods; a plugin's method of that name goes first."""
    return isinstance(text, str) and text.strip().lower() in WORDS and text not in methods


def expand(listed: Sequence[Method | str]) -> Field:
    """The methods, each word among them replaced by those it stands for that are not named beside it."""
    named = [str(each) for each in listed if isinstance(each, Method)]
    found: list[Method] = []
    optional: set[str] = set()
    notes: list[str] = []
    cut: list[str] = []
    for each in listed:
        if isinstance(each, Method):
            found.append(each)
            continue
        for name in _names(each.strip().lower()):
            try:
                usual = at_defaults(name)
            except InputError as error:  # it has options without a default
                notes.append(f"left out: {name} ({one_line(error)})")
                continue
            method = budget(usual)
            if str(method) not in (*named, *optional):
                found.append(method)
                optional.add(str(method))
                cut += [str(method)] if method != usual else []
    if cut:
        notes.insert(0, f"a small budget, where the paper's takes hours: {'; '.join(cut)}")
    return Field(tuple(found), frozenset(optional), tuple(notes))


def budget(method: Method) -> Method:
    """The method as it runs in a comparison of all."""
    return shorten(method, above=ABOVE, to=TO, condensing=CONDENSING)


def _names(word: str) -> list[str]:
    """FedAvg first, to whom time and bytes are relative; then global methods, then personal ones."""
    families = by_family()
    families["wrappers"] = [name for name in families["wrappers"] if name not in SAME]
    own_around = [name for name in families["wrappers"] if output_of(methods.get(name)) != "global"]
    around = [name for name in families["wrappers"] if name not in own_around]
    one = [*families["global"], *around, *families["condensing"]]
    own = [*families["personal"], *own_around]
    return {"all": [*one, *own], "all-global": one, "all-personal": ["fedavg", *own]}[word]


def drop_misfits(wanted: Field, base: Run, seed: int, data: Dataset) -> Field:
    """Without those of the optional methods that this run's data, model or options refuse; says why."""
    kept: list[Method] = []
    notes = list(wanted.notes)
    for method in wanted:
        reason = _find_misfit(method, base, seed, data) if str(method) in wanted.optional else ""
        if reason:
            notes.append(f"left out: {method.name} ({reason})")
        else:
            kept.append(method)
    if not kept:
        raise InputError(f"no method fits to this run; {notes[-1]}")
    for note in notes:
        log.info("%s", note)
    return replace(wanted, methods=tuple(kept), notes=tuple(notes))


def _find_misfit(method: Method, base: Run, seed: int, data: Dataset) -> str:
    try:
        run = construct(Run, {**vars(base), "method": method, "seed": seed})
        prepared = building.prepare_data(run, dataset=data)
        task = replace(building.prepare_resolved(run.resolve(prepared), prepared).task, server_store=MemoryStore())
        ask_server(task, "init", task.server_context(0))
    except InputError as error:
        return one_line(error)
    return ""
