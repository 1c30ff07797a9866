"""From a job to a reply: what a client does with a message, and what its slots may use meanwhile.

    prepare    the context that all later slots of the visit see
    start      the parameters to train from
    train      local training
    upload     the reply to the server
    keep       what the client remembers
    weight     how much the client counts in means
    (wire)     the reply is encoded

What a slot hands on beside its parameters (`Outcome`) is `c.made` for those after it, what `upload` gave is `c.sent`.
After `prepare`, a survey calls `survey` alone, and a client's test `personalise` and `predict`.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor
from typing_extensions import Unpack

from unskew.base import seeds, tree
from unskew.base.batch import Output, cross_entropy
from unskew.base.process import keep_torch_modes
from unskew.base.tree import Groups, Tree
from unskew.core.checks.asking import Slots, hold, refuse_unusable, refuse_unused_terms, take_slots
from unskew.core.checks.faults import Fault
from unskew.core.checks.guard import Guard
from unskew.core.checks.returned import CheckedDiagnostics, ServerDiagnostics
from unskew.core.checks.watching import DRAWS, is_foreign, show
from unskew.core.context import STATISTICS, ClientContext, Context, Diagnostics, Fixed, Outcome, ServerContext, Steps
from unskew.core.jobs import PREVIOUS, WIRE, Job, Reply, Wire, split_state
from unskew.core.net import Forward, Mode, Net, PassOptions
from unskew.core.per_client import PerClient
from unskew.core.slots import overrides
from unskew.core.term import NotedTerms
from unskew.core.wrapper import Wrapper, walk_nested

if TYPE_CHECKING:
    from unskew.core.task import Task
    from unskew.data.batches import LocalData


AnyContext = TypeVar("AnyContext", bound=Context)


class Work(NamedTuple):
    """What a job brought, before it is packed into a reply."""

    groups: Groups
    state: Groups
    weight: Tensor | None = None


# ------------------------------------------------------------------------------------------- the work


def work(task: Task, job: Job) -> Reply:
    """Does one job: the same function in every executor that takes clients one by one."""
    if not task.has_foreign_model:
        return _work(task, job)
    guard = Guard()
    with keep_torch_modes():
        reply = _work(task, job)
    refuse_draws(task, guard)
    return reply


def refuse_draws(task: Task, guard: Guard) -> None:
    """A fault where the layers of somebody's network drew from a generator that nobody seeds."""
    if (whose := guard.find_draw()) is not None:
        kinds = sorted({type(layer).__name__ for layer in task.net.module.modules() if is_foreign([layer])})
        advice = "torch's (torch.rand), which is seeded for every visit"
        raise Fault(None, "", f"the model ({', '.join(kinds)}) {DRAWS.format(whose, advice)}", final=True)


def _work(task: Task, job: Job) -> Reply:
    seeds.seed_layers(task.seed, f"layers/{job.kind}", job.round, job.client)
    began = time.perf_counter()
    device, federation = task.device, task.federation
    if not device.is_cpu:
        job = job._replace(message=device.to_device(job.message), state=device.to_device(job.state))
    if job.client < 0:  # nobody's visit: the global model on a part of the common test or validation set
        data = federation.common(job.kind, *job.part)
        c = client_context(task, job, data)
    else:
        own = federation.train(job.client)
        data = federation.local_test(job.client) if job.kind == "personal" else own
        c = open_visit(task, job, own)
    done = perform(task, job, c, data)
    weight = float(done.weight) if done.weight is not None else float(len(data))
    refuse_unusable(task, [weight])
    groups, state = device.to_cpu(done.groups), device.to_cpu(done.state)
    if state and task.guarded_slots:
        state = tree.settle(state)
    # one look at all of it: a second one would cost a tiny visit as much again
    sound = (
        True if state and tree.all_finite({**groups, **{f"kept/{name}": own for name, own in state.items()}}) else None
    )
    return Reply(
        client=job.client,
        groups=groups,
        state=state,
        finite=sound,
        state_finite=sound or not state or task.find_spoilt(state) is None,
        weight=weight,
        num_samples=len(data),
        num_steps=c.diagnostics.steps,
        diagnostics=c.diagnostics.means(),
        seconds=time.perf_counter() - began,
    )


def open_visit(
    task: Task,
    job: Job,
    data: LocalData,
    steps: Steps | None = None,
    kind: type[ClientContext] = ClientContext,
    **more: Any,
) -> ClientContext:
    """What the client's slots may use in a visit, as the method prepared it.

    `job` may stand for many clients at once: then its tensors are batched, and `steps`, the `kind` of context and
    `more` of its fields fit to that.
    """
    slots = take_slots(task, f"open {job.kind}")
    own, kept = split_state(job.state, WIRE, PREVIOUS)  # the method sees its own groups only
    job = job._replace(state=own) if kept else job
    c = client_context(task, job, data, steps, kind, **more)
    given = c.state
    _receive(task, c, given)
    if not c.state and (first := slots.init_client(c)):
        c = c.with_fields(state=first)
        _receive(task, c, given)
    if task.keeps_previous:
        previous = {what: kept.get(f"{PREVIOUS}{what}", c.initial[what]) for what in ("model", "buffers")}
        c = c.with_fields(previous={**previous, "model": c.add_fixed(previous["model"])})
    prepared: ClientContext = slots.prepare(c)
    if c.guarded and task.is_first(f"prepare {job.kind}"):
        _check_prepared(task, c, prepared)
    return prepared


def _check_prepared(task: Task, c: ClientContext, prepared: ClientContext) -> None:
    """Refuses a user's wrapper around a method whose preparation it leaves out."""
    for wrapper in walk_nested(task.method):
        own = isinstance(wrapper, Wrapper) and not type(wrapper).prepare.__module__.startswith("unskew.")
        if not (own and isinstance(wrapper, Wrapper) and overrides(wrapper.inner, "prepare")):
            continue
        inner = wrapper.inner.prepare(c.with_fields(diagnostics=c.diagnostics.make_empty()))
        missing = [f'c.made["{name}"]' for name in inner.made.keys() - prepared.made.keys()]
        if inner.forward is not c.forward and prepared.forward is c.forward:
            missing.append("another forward")
        if missing:
            what = f"leaves out what {wrapper.inner.name}.prepare makes ({missing[0]}); hand on self.inner.prepare(c)"
            raise Fault(wrapper, "prepare", what)


def _receive(task: Task, c: ClientContext, state: Groups) -> None:
    """Gives a context that no slot has seen yet the model that the visit starts from."""
    received = {"model": task.method.receive(c), "buffers": _pick_buffers(task, c.message, state)}
    object.__setattr__(c, "received", received)  # a copy of the context for it is felt in tiny visits


def first_state(task: Task, job: Job, data: LocalData) -> Groups:
    """What a client's state would be before its first visit, whole: also what the visit keeps for terms."""
    c = client_context(task, job, data)
    _receive(task, c, c.state)
    first: Groups = take_slots(task, "open first").init_client(c)
    if not task.keeps_previous:
        return first
    return {**first, **_keep_previous(c.drop_fixed(c.initial["model"]), c.initial["buffers"])}


def _keep_previous(params: Tree, buffers: Tree) -> Groups:
    """What a client's state has for terms that need its model of now at its next visit."""
    groups = {f"{PREVIOUS}model": params, f"{PREVIOUS}buffers": buffers}
    return {name: group for name, group in groups.items() if group}


def perform(task: Task, job: Job, c: ClientContext, data: LocalData) -> Work:
    """The work of a prepared visit; the same slots in the same order for one client and for many at once."""
    slots = take_slots(task, job.kind)
    if job.kind == "train":
        done = run_client(task, c, slots)
        return done if task.wire is None else encode(task.wire, job, c, done)
    if job.kind == "survey":
        return Work(slots.survey(c), {})
    if job.kind != "personal":
        return Work({"score": score(slots, c, c.message["model"], data, task.eval_batch, job.whole)}, {})
    c, params = open_personal(c, slots.personalise(c))
    return Work({"score": score(slots, c, params, data, task.eval_batch, job.whole)}, {})


def run_client(task: Task, c: ClientContext, slots: Slots) -> Work:
    """A training visit, from the prepared context to what is sent and kept."""
    c, params = open_outcome(c, slots.start(c))
    if task.needs:
        for need, which in _FIXED.items():
            c = c.with_seen(which) if need in task.needs else c
    hold(slots, "params", params)
    c, params = open_outcome(c, slots.train(c, params))
    if isinstance(c.terms, NotedTerms) and not c.terms.used:
        refuse_unused_terms(task, c)
    hold(slots, "params", params)
    if params.keys() >= set(c.trainable):  # some methods train something else than the model: condensed data
        for observer in c.observers:
            show(observer, "trained", c, params)
    sent: Groups = slots.upload(c, params)
    hold(slots, "c.sent", sent)
    c = c.with_fields(sent=sent) if task.reads_sent else c
    state = slots.keep(c, params)
    if task.keeps_previous:
        state = {**state, **_keep_previous(c.drop_fixed(params), c.buffers)}
    return Work(groups=sent, state=state, weight=slots.weight(c, params))


_FIXED: dict[str, Fixed] = {"teacher": "received", "previous": "previous"}
"""Which model a term wants to ask."""


def open_outcome(c: ClientContext, found: Tree | Outcome) -> tuple[ClientContext, Tree]:
    """What a slot gave: its parameters, and the visit with what else it made."""
    if not isinstance(found, Outcome):
        return c, found
    return c.with_fields(made={**c.made, **found.made}), found.params


def open_personal(c: ClientContext, found: Tree | Outcome) -> tuple[ClientContext, Tree]:
    """The same of `personalise`: the visit also gets the BatchNorm statistics that belong to the model."""
    c, params = open_outcome(c, found)
    own = c.made.get(STATISTICS)
    return c.with_buffers(own) if own else c, params


def encode(wire: Wire, job: Job, c: ClientContext, done: Work) -> Work:
    """The work with its reply as it travels, and what the wire keeps beside the method's state."""
    sent, kept = wire.encode(c, done.groups, split_state(job.state, WIRE)[1])
    return done._replace(groups=sent, state={**done.state, **kept})


def score(slots: Slots, c: ClientContext, params: Tree, data: LocalData, batch: int, whole: bool = False) -> Tree:
    """For each sample, whether it is predicted right and its loss; `whole`: what is predicted, and all scores."""
    found: dict[str, list[Tensor]] = {key: [] for key in ("right", "loss", *(("predicted", "scores") if whole else ()))}
    with torch.no_grad():
        for part in data.passes(batch):
            logits = slots.predict(c, params, part.x)
            predicted = logits.argmax(1)
            found["right"].append(predicted == part.y)
            found["loss"].append(cross_entropy(logits, part.y).float())
            if whole:
                found["predicted"].append(predicted)
                found["scores"].append(logits.float())
    if not found["right"]:
        return {"right": torch.empty(0, dtype=torch.bool), "loss": torch.empty(0)}
    return {key: torch.cat(parts) for key, parts in found.items()}


# ------------------------------------------------------------------------------------------ the contexts


def client_context(
    task: Task,
    job: Job,
    data: LocalData,
    steps: Steps | None = None,
    kind: type[ClientContext] = ClientContext,
    **more: Any,
) -> ClientContext:
    """The context of a visit before the method prepared it; for jobs `test` and `validate`, the global model's."""
    steps = steps or task.steps
    initial = task.initial_on_device
    if task.has_foreign_model:  # whose forward pass may write into its weights: they are nobody else's
        job = job._replace(message=tree.copy_groups(job.message), state=tree.copy_groups(job.state))
        initial = tree.copy_groups(initial)
    more.setdefault("diagnostics", CheckedDiagnostics() if task.guarded_slots else Diagnostics())
    if task.guarded_slots:
        more["closely"] = task.is_first(f"visit {job.kind} {kind.__name__}")
    own = steps.copy(_pick_buffers(task, job.message, job.state))
    policy = task.buffer_policy
    # clients that keep their statistics leave the global model without any
    none = policy == "reset" or (policy == "local" and job.kind in ("test", "validate"))
    return _pick_blank(task, kind).with_fields(
        **_fields_of_round(task, job.round, own, none, steps), client=job.client, message=job.message, state=job.state,
        initial=initial, data=data, observers=task.client_observers if job.kind == "train" else (), made={}, sent={},
        received={}, previous={}, **more,
    )  # fmt: skip


def server_context(
    task: Task, round_: int, cohort: tuple[int, ...] = (), server: Groups | None = None
) -> ServerContext:
    """What the server's slots may use in a round; its passes use the buffers of the server's state."""
    seeds.seed_layers(task.seed, "layers/server", round_)
    own = task.steps.copy((server or task.initial).get("buffers", {}))
    return _pick_blank(task, ServerContext).with_fields(
        **_fields_of_round(task, round_, own, task.buffer_policy != "average", task.steps), cohort=cohort, record={},
        diagnostics=ServerDiagnostics() if task.guarded_slots else Diagnostics(),
        per_client=PerClient(task.server_store, round_, clients=task.num_clients),
    )  # fmt: skip


def _fields_of_round(task: Task, round_: int, buffers: Tree, batch_statistics: bool, steps: Steps) -> dict[str, Any]:
    forward: Forward = steps.bind(task.device.cast(bind_forward(task.net, buffers, batch_statistics)))
    if task.profile:
        forward, steps = task.profile.wrap(forward, steps)
    return {
        "round": round_, "settings": task.settings(round_), "steps": steps, "forward": forward, "buffers": buffers,
    }  # fmt: skip


def _pick_blank(task: Task, kind: type[AnyContext]) -> AnyContext:
    """A context with all that is the same in every visit or round: to fill in the rest takes a fifth of the time that
    making one anew does."""
    if (known := task.blanks.get(kind)) is None:
        known = task.blanks[kind] = _make_blank(task, kind)
    return cast("AnyContext", known)


def _make_blank(task: Task, kind: type[Context]) -> Context:
    at_server = issubclass(kind, ServerContext)
    own: dict[str, Any] = {"has_batchnorm": task.net.has_batchnorm}
    own |= {"num_clients": task.num_clients} if at_server else {"terms": task.loss_terms, "maps": task.maps}
    return kind(
        round=0, seed=task.seed, num_classes=task.federation.dataset.num_classes, settings=task.local,
        names=task.net.names, trainable=task.trainable, steps=task.steps, forward=bind_forward(task.net, {}, False),
        initial=task.initial if at_server else task.initial_on_device, buffer_policy=task.buffer_policy,
        fresh=partial(task.net.fresh, task.initial_on_device), constants=task.net.constants, rounds=task.rounds,
        guarded=bool(task.guarded_slots), foreign_model=task.has_foreign_model, **own,
    )  # fmt: skip


def _pick_buffers(task: Task, message: Groups, state: Groups) -> Tree:
    """The buffers that a visit starts from."""
    if task.buffer_policy == "local" and "buffers" in state:
        return state["buffers"]
    if task.buffer_policy == "reset":
        return task.initial_on_device["buffers"]
    return message.get("buffers", task.initial_on_device["buffers"])


def bind_forward(network: Net, own: Tree, batch_statistics: bool) -> Forward:
    """The plain forward pass of a context: the worker's module with the context's buffers.

    With `batch_statistics`, evaluation uses those of the batch: there are no running ones that mean anything.
    """

    def forward(params: Tree, x: Tensor, mode: Mode = "train", **options: Unpack[PassOptions]) -> Output:
        mode = "eval_batch" if mode == "eval" and batch_statistics else mode
        if not options:  # as in nearly every step
            return network(params, own, x, mode)
        given = options.get("buffers")
        layers, part, maps = options.get("layers"), options.get("part", "whole"), options.get("maps", ())
        return network(params, own if given is None else given, x, mode, layers, part, maps)

    return forward
