"""Actors on the nodes of a Ray cluster; the same bits as `serial`.

Module, method and data go to each node once, through the object store; what several clients are sent goes there once a
round, by reference. Long clients go first; replies are merged in the sampled order. A job whose actor or node dies is
given to another one.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor

from unskew.base import user_code
from unskew.base.errors import ClientError, InputError, name_worker, one_line
from unskew.base.process import count_cores
from unskew.base.tree import Groups
from unskew.core.jobs import Job, Reply
from unskew.core.task import Task
from unskew.executors.answers import read_reply
from unskew.executors.packing import Layout, pack, unpack
from unskew.executors.ray.actor import Actor, as_tensor, list_versions, wrap
from unskew.executors.window import Window

log = logging.getLogger(__name__)

RETRIES = 3
"""How often a job is given to another actor at least: nodes of a cluster come and go."""
PATIENCE = 60.0
"""Seconds without any actor after which it is said what is waited for."""


def import_ray() -> Any:
    """Ray, which is an extra."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise InputError("executor 'ray' needs Ray; install it with: pip install 'unskew[ray]'") from None
    return ray


def connect(address: str = "", cores: int = 0) -> bool:
    """Connects to a cluster (also that of RAY_ADDRESS), or starts one of this machine; whether it did either."""
    ray = import_ray()
    if ray.is_initialized():
        return False
    address = address or os.environ.get("RAY_ADDRESS", "")
    # "local": without an address Ray would look for a cluster that somebody else started on this machine
    own = {"address": "local", "include_dashboard": False, "num_cpus": cores or count_cores()}
    quiet = {"address": address} if address else own
    try:
        ray.init(**quiet, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        raise InputError(
            f"cannot connect to the Ray cluster at '{address or 'this machine'}': {one_line(error)[:200]}; "
            "start one with 'ray start --head' and give its address, or leave --address out"
        ) from None
    return True


@contextlib.contextmanager
def sent_by_value(ray: Any) -> Iterator[None]:
    """Meanwhile the user's own modules are sent by their contents: nodes need no copy of them."""
    own = user_code.list_modules()
    for module in own:
        ray.cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in own:
            ray.cloudpickle.unregister_pickle_by_value(module)


class OnRay:
    """Hands jobs to actors and gives the replies in the order of the jobs."""

    longest_first = True

    def __init__(
        self, task: Task, workers: int, most: int, retries: int = 0, address: str = "", gpus: float = 0.0
    ) -> None:
        """`workers`: actors that are wanted, 0: one for each core of the cluster; `most` of them have work at once."""
        self._started = connect(address, workers)
        self._ray, self._retries, self._gpus = import_ray(), max(retries, RETRIES), gpus
        self._idle: list[Any] = []
        self._starting: dict[Any, Any] = {}
        """Actors that are not ready yet, by what they will say when they are."""
        self._busy: dict[Any, tuple[Any, int, Job]] = {}
        """By the reply that is awaited: actor, place in the order, job."""
        self._deaths: dict[int, int] = {}
        self._broadcasts: dict[tuple[int, ...], tuple[list[Tensor], Any, Layout]] = {}
        self._parcel: tuple[Any, Any] = None, None
        try:
            self._wanted = min(workers or self._count_places(), most)
            self._check_places()
            self._parcel = self._send(task)
            for _ in range(self._wanted):
                self._start()
        except BaseException:
            self.close()
            raise

    def run(self, jobs: Iterable[Job]) -> Iterator[Reply]:
        """A reply for each job, in order; replies that come early wait their turn."""
        self._forget()
        window = Window(jobs, max(16, 4 * self._wanted))
        while not window.finished:
            while self._idle and (picked := window.pick()) is not None:
                self._give(self._idle.pop(), *picked, window)
            for future in self._wait(0 if window.ready else PATIENCE):
                self._collect(future, window)
            if window.ready:
                yield window.pop_due()

    def close(self) -> None:
        """Ends the actors, and the cluster if it was started for this run."""
        actors = [*self._idle, *self._starting.values(), *(actor for actor, *_ in self._busy.values())]
        for actor in actors:
            with contextlib.suppress(Exception):
                self._ray.kill(actor)
        for held in (self._idle, self._starting, self._busy, self._broadcasts):
            held.clear()
        self._parcel = None, None
        if self._started:
            self._ray.shutdown()
            self._started = False

    # ---------------------------------------------------------------------------------------- actors

    def _count_places(self) -> int:
        """How many actors the cluster has room for."""
        there = self._ray.cluster_resources()
        places = int(there.get("CPU", 0))
        return min(places, int(there.get("GPU", 0) / self._gpus + 1e-9)) if self._gpus else places

    def _check_places(self) -> None:
        if not self._count_places():
            there = self._ray.cluster_resources()
            raise InputError(
                f"the Ray cluster has no room for an actor of 1 core and {self._gpus:g} GPUs: it has "
                f"{there.get('CPU', 0):g} cores and {there.get('GPU', 0):g} GPUs; add nodes, or lower execution.gpus"
            )

    def _send(self, task: Task) -> tuple[Any, Any]:
        """Task and data in the object store; the user's own modules go along by their contents."""
        parcel, raw = wrap(task)
        try:
            with sent_by_value(self._ray):
                return self._ray.put(parcel), self._ray.put(raw)
        except (TypeError, AttributeError, ValueError, RecursionError) as error:
            raise InputError(
                f"this run cannot be sent to a Ray cluster: {one_line(error)[:200]}; use --executor pool"
            ) from None

    def _start(self) -> None:
        options = {"num_cpus": 1, "num_gpus": self._gpus, "scheduling_strategy": "SPREAD", "max_restarts": 0}
        actor = self._ray.remote(Actor).options(**options).remote(*self._parcel)
        self._starting[actor.tell_versions.remote()] = actor

    def _forget(self) -> None:
        """Jobs whose replies nobody took: their actors are free once they are done with them."""
        for future, (actor, *_) in list(self._busy.items()):
            self._starting[actor.tell_versions.remote()] = actor
            del self._busy[future]
        self._broadcasts.clear()
        self._deaths.clear()

    # ------------------------------------------------------------------------------------------ jobs

    def _give(self, actor: Any, index: int, job: Job, window: Window) -> None:
        shared: Groups = {}
        own: Groups = {}
        for name, tree in job.message.items():
            for key, value in tree.items():
                (shared if window.is_shared(value) else own).setdefault(name, {})[key] = value
        everyones, places = self._broadcast(shared)
        raw, layout = pack(own)
        kept, kept_layout = pack(job.state)
        names = {name: list(tree) for name, tree in job.message.items()}
        header = {**job._asdict(), "shared": places, "own": layout, "kept": kept_layout, "names": names}
        del header["message"], header["state"]
        future = actor.work.remote(json.dumps(header), everyones, raw.numpy(), kept.numpy())
        self._busy[future] = actor, index, job

    def _broadcast(self, groups: Groups) -> tuple[Any, Layout]:
        """A reference to what several clients are sent: put into the object store once a round."""
        tensors = [value for tree in groups.values() for value in tree.values()]
        if not tensors:
            return None, {}
        key = tuple(map(id, tensors))  # the tensors are held, so that no id is used again
        if key not in self._broadcasts:
            raw, layout = pack(groups)
            self._broadcasts[key] = tensors, self._ray.put(raw.numpy()), layout
        _, reference, layout = self._broadcasts[key]
        return reference, layout

    def _wait(self, seconds: float) -> list[Any]:
        """What has come: replies, and actors that are ready."""
        waiting = [*self._busy, *self._starting]
        ready: list[Any] = self._ray.wait(waiting, num_returns=len(waiting), timeout=0)[0]
        if ready or not seconds:
            return ready
        ready = self._ray.wait(waiting, num_returns=1, timeout=seconds)[0]
        if not ready and not self._busy:
            log.warning(
                "waiting for %d Ray actors; the cluster has room for %d", len(self._starting), self._count_places()
            )
        return ready

    def _collect(self, future: Any, window: Window) -> None:
        if future in self._starting:
            self._welcome(future)
            return
        actor, index, job = self._busy.pop(future)
        try:
            text, blocks = self._ray.get(future)
        except self._ray.exceptions.RayError as error:
            self._replace(actor, index, job, error)
            window.give_back(index, job)
            return
        self._idle.append(actor)
        own = iter(blocks)
        window.take(index, job, read_reply(json.loads(text), job, lambda layout: _copy(next(own), layout)))

    def _welcome(self, future: Any) -> None:
        """An actor is ready, or could not be made."""
        actor = self._starting.pop(future)
        try:
            versions, ours = self._ray.get(future), list_versions()
        except self._ray.exceptions.RayError as error:
            if not self._idle and not self._busy and not self._starting:
                raise InputError(
                    f"no Ray actor could be started: {_last_line(error)}; every node needs the same unskew, torch and "
                    "Python"
                ) from None
            log.warning("a Ray actor could not be started: %s", _last_line(error))
            return
        if versions != ours:
            differing = ", ".join(f"{name} {versions[name]} (here {own})" for name, own in ours.items()
                                  if versions[name] != own)  # fmt: skip
            raise InputError(f"a node of the Ray cluster has {differing}; install the same on every node")
        self._idle.append(actor)

    def _replace(self, actor: Any, index: int, job: Job, error: Exception) -> None:
        """Another actor in a dead one's place, if the cluster still has room; its job waits for any of them."""
        with contextlib.suppress(Exception):
            self._ray.kill(actor)
        self._deaths[index] = self._deaths.get(index, 0) + 1
        how = _last_line(error)
        if self._deaths[index] > self._retries:
            raise ClientError(job.client, job.round, f"its Ray actor died {self._deaths[index]} times: {how}") from None
        log.warning("%s in round %d: a Ray actor died (%s); another one tries again", name_worker(job.client),
                    job.round, how)  # fmt: skip
        there = len(self._idle) + len(self._busy) + len(self._starting)
        if there < self._wanted and (there < self._count_places() or not there):
            self._start()


def _copy(raw: Any, layout: Layout) -> Groups:
    """A reply's tensors in memory of their own: the object store is free again."""
    return unpack(as_tensor(raw).clone(), layout)


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:200]
