"""Methods tried on two tiny clients: what they send and keep, and which wrapper goes around which method.

A few hundredths of a second each: an `mlp`, 32 images of 8x8 in ten classes, two rounds. One client holds all classes,
the other six of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, wraps
from typing import Any

import torch

from unskew.base import tree
from unskew.base.errors import InputError, one_line
from unskew.base.process import prepare_process
from unskew.base.tree import Groups
from unskew.core.jobs import Job, Reply
from unskew.core.method import Method
from unskew.core.per_client import MemoryStore
from unskew.core.round_loop import rounds
from unskew.core.slots import NAMES
from unskew.core.task import Task
from unskew.core.wrapper import Wrapper, walk_nested
from unskew.data.dataset import Dataset, Samples
from unskew.executors.serial import Serial
from unskew.methods.catalogue import at_defaults, by_family, family_of, put_around, shorten
from unskew.methods.fedavg import FedAvg
from unskew.runs import building, engine
from unskew.runs.config import Run, from_table
from unskew.wire.base import processors
from unskew.wire.chain import build_chain

Facts = dict[str, Any]
ROUNDS = 2
"""In the second one, clients remember their first visit."""
PLAIN, NORMALISED = "mlp", "cnn8(norm=batch)"
"""The network; for methods that treat normalisation layers otherwise, one that has some."""


@lru_cache(maxsize=1)
def tiny_data() -> Dataset:
    """Twenty images of all ten classes at one client, twelve of six classes at the other."""
    y = torch.cat([torch.arange(20) % 10, torch.arange(12) % 6])
    noise = torch.randint(0, 100, (32, 1, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    samples = Samples(noise + (15 * y).to(torch.uint8).view(-1, 1, 1, 1), y)
    groups = torch.cat([torch.zeros(20, dtype=torch.int64), torch.ones(12, dtype=torch.int64)])
    return Dataset("tiny", samples, samples, tuple("0123456789"), (0.5,), (0.5,), groups=groups, group_names=("a", "b"))


def make_run(method: Method) -> Run:
    """Two rounds of a method on the tiny data, with every repetition that does not change what is sent cut to one."""
    return from_table({
        "method": _hurry(method), "model": _choose_model(method), "split": "natural", "rounds": ROUNDS,
        "local": {"batch": 10, "lr": 0.01},
    })  # fmt: skip


def _hurry(method: Method) -> Method:
    hurried = replace(method, inner=_hurry(method.inner)) if isinstance(method, Wrapper) else method
    return shorten(hurried, above=1, to=1)


def _choose_model(method: Method) -> str:
    return NORMALISED if any(pattern.startswith("@") for pattern in method.personal) else PLAIN


# ------------------------------------------------------------------------------------ what is sent and kept


class _Recording(Serial):
    """A serial executor that keeps what the first client was sent, and what it replied, in the newest round."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.message: Groups = {}
        self.replies: dict[tuple[int, str], Reply] = {}

    def run(self, jobs: Iterable[Job]) -> Iterator[Reply]:
        """A reply for each job."""
        for job in jobs:
            for reply in super().run([job]):
                if job.client == 0:
                    self.message, self.replies[job.round, job.kind] = job.message, reply
                yield reply

    def count_up(self) -> dict[str, int]:
        """Bytes of each group that it sent in the last round, before and after training."""
        found: dict[str, int] = {}
        for (round_, _), reply in self.replies.items():
            for name, group in reply.groups.items() if round_ == ROUNDS else ():
                found[name] = found.get(name, 0) + tree.nbytes({name: group})
        last = self.replies[ROUNDS, "train"]
        return found if last.weight == last.num_samples else {**found, "weight": 4}


def find_facts(method: Method) -> Facts:
    """What a client that holds all classes is sent, sends and keeps in its second visit, and what the server keeps.

    In multiples of the bytes of the model that the run names, by group. `once`: what the network froze travels with
    the first message only.
    """
    with _silence(), prepare_process(1):
        run, data = make_run(method), tiny_data()
        task = replace(building.prepare(run, dataset=data).task, server_store=MemoryStore())
        server = task.method.init(task.server_context(0))
        executor, store = _Recording(task), MemoryStore()
        for done in rounds(task, executor, store, server, 1, ROUNDS):
            server = done.server
        plain = building.build_model(replace(run, method=FedAvg()), data).state_dict()
    s, fixed = task.server_context(1), task.net.names.fixed
    once = task.method.division.shared(s, tree.select(s.initial["model"], fixed))
    at_server = {name: group for name, group in server.items() if name not in ("model", "buffers")}
    at_server |= {f"{name} of each client": group for name, group in task.server_store.get(0).items()}
    counted = {
        "down": _count(executor.message), "up": executor.count_up(), "once": _count({"fixed": once}),
        "client": _count(store.get(0)), "server": _count(at_server),
    }  # fmt: skip
    whole = tree.nbytes({"model": plain})
    return {what: {name: n / whole for name, n in parts.items() if n} for what, parts in counted.items()}


def _count(groups: Groups) -> dict[str, int]:
    return {name: tree.nbytes({name: group}) for name, group in groups.items()}


def describe(name: str, rows: Mapping[str, Mapping[str, Verdict]] | None = None) -> Facts:
    """All that the list of methods says of one at its defaults; `rows`: what `try_all` found, where it is known."""
    method = at_defaults(name)
    found = (rows or {}).get(name) or {wrapper: try_around(wrapper, method) for wrapper in wrappers()}
    return {
        "family": family_of(type(method)),
        "output": method.output,
        **find_facts(method),
        "model": _choose_model(method),
        "inside": [wrapper for wrapper in wrappers() if found[wrapper].composes],
        "terms": method.takes_terms,
        "wire": [processor for processor in processors if _fits_wire(processor, method)],
        "stackable": method.stackable,
    }


def _fits_wire(processor: str, method: Method) -> bool:
    try:
        build_chain((processors.build(processor),), method)
    except InputError:
        return False
    return True


# ------------------------------------------------------------------------------------------ what composes


@dataclass(frozen=True)
class Verdict:
    """What came of a trial: it runs, or it is refused for a reason, or something is wrong."""

    refused: str = ""
    failed: str = ""
    lost: tuple[str, ...] = ()
    """It runs, but these slots of the method inside, which it calls alone, are never called."""

    @property
    def composes(self) -> bool:
        """Whether it runs and all is well."""
        return not (self.refused or self.failed or self.lost)


def wrappers() -> list[str]:
    """The registered wrappers."""
    return by_family()["wrappers"]


def try_all(watch: Callable[[str], None] | None = None) -> dict[str, dict[str, Verdict]]:
    """Every method alone (under "") and inside every wrapper; `watch` is called with each before it is tried."""
    found: dict[str, dict[str, Verdict]] = {}
    for names in by_family().values():
        for name in names:
            if watch:
                watch(name)
            found[name] = try_everywhere(name)
    return found


def try_everywhere(name: str) -> dict[str, Verdict]:
    """One method alone (under "") and inside every wrapper."""
    try:
        method = at_defaults(name)
    except InputError as error:
        return dict.fromkeys(("", *wrappers()), Verdict(refused=one_line(error)))
    return {"": try_method(method), **{wrapper: try_around(wrapper, method) for wrapper in wrappers()}}


def try_around(wrapper: str, method: Method) -> Verdict:
    """A wrapper at its defaults around a method: right, or refused."""
    try:
        return try_method(put_around(wrapper, method))
    except InputError as error:
        return Verdict(refused=one_line(error))


def try_method(method: Method) -> Verdict:
    """Plays a method as any run would; what it raises is a failure, unless it is a refusal."""
    try:
        run = make_run(method)
        inner = run.method.inner if isinstance(run.method, Wrapper) else None
        if inner is None or type(inner) in (type(each) for each in _around(run.method, inner)):
            return _judge(_play(run))
        alone, within = set[str](), set[str]()
        with count_calls(type(inner), alone):
            _play(make_run(inner))
        with count_calls(type(inner), within):
            result = _play(run)
        return replace(_judge(result), lost=tuple(slot for slot in NAMES if slot in alone - within))
    except InputError as error:
        return Verdict(refused=one_line(error))
    except Exception as error:  # whatever a method does
        return Verdict(failed=f"{type(error).__name__}: {one_line(error)}")


def _around(method: Method, inner: Method) -> list[Method]:
    return [each for each in walk_nested(method) if each is not inner]


def _play(run: Run) -> engine.Result:
    with _silence():
        return engine.run(run, dataset=tiny_data())


def _judge(result: engine.Result) -> Verdict:
    if result.diverged or result.summary["excluded_replies"]:
        return Verdict(failed="diverged: it gave numbers that are not finite")
    return Verdict()


@contextmanager
def count_calls(kind: type[Method], called: set[str]) -> Iterator[None]:
    """Notes which of a class's own slots are called: a wrapper that hides one without a word would lose it."""
    default = Wrapper if issubclass(kind, Wrapper) else Method
    own = {slot: getattr(kind, slot) for slot in NAMES if getattr(kind, slot) is not getattr(default, slot)}
    defined = {slot for slot in own if slot in vars(kind)}

    def noting(slot: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*args: Any, **more: Any) -> Any:
            called.add(slot)
            return function(*args, **more)

        return call

    for slot, function in own.items():
        setattr(kind, slot, noting(slot, function))
    try:
        yield
    finally:
        for slot, function in own.items():
            if slot in defined:
                setattr(kind, slot, function)
            else:
                delattr(kind, slot)


@contextmanager
def _silence() -> Iterator[None]:
    """What a trial would warn of concerns nobody."""
    log = logging.getLogger("unskew")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)
