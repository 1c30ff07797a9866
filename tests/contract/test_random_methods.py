"""Methods made of random legal slots on random small federations: every executor tells the same story.

Checked of each: `pool` gives the bits of `serial` (model, rows, clients' states); a run that was cut goes on bit for
bit; `stacked` differs by rounding only, or says that clients work one by one. Networks are of double precision, so that
rounding is tiny and a fault is not; what slots see is noted in the clients' rows, which are compared, too.
"""

import contextlib
import itertools
import json
import logging
import math
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, event, given, note, settings
from hypothesis import strategies as st
from torch import nn

from awkward import DoubleBody
from unskew import Outcome, reducers, tree
from unskew.base.errors import ClientError, InputError
from unskew.base.registry import param
from unskew.core.local_loop import sgd
from unskew.core.method import Method, methods
from unskew.core.term import Term
from unskew.data.dataset import Dataset, Samples
from unskew.data.partition.splits import Split, splits
from unskew.models.base import Model
from unskew.models.user_module import GivenModule
from unskew.runs import engine
from unskew.runs.client_store import StateStore
from unskew.runs.config import from_table
from unskew.terms.kl import KL
from unskew.terms.prox import Prox

CLASSES, INPUTS, FEATURES = 3, 4, 5
TOLERANCE = 1e-7
"""In double precision, of the distance moved: what is more than that is no rounding."""

# ------------------------------------------------------------------------------------------- the federation


@dataclass(frozen=True)
class Federation:
    """Who holds what, and how clients train."""

    sizes: tuple[int, ...]
    classes: tuple[int, ...]
    """For each client the classes that it may hold, as bits."""
    network: str
    seed: int
    batch: int
    length: tuple[str, int]
    """So many epochs, or steps."""
    momentum: float
    weight_decay: float
    lr_decay: float
    drop_last: bool
    sample: float
    dropout: float
    stragglers: float
    buffers: str
    local_test: str
    rounds: int
    cut: int
    chunk: int

    def data(self):
        rng = torch.Generator().manual_seed(self.seed)
        y = torch.cat([self._labels(*own, rng) for own in zip(self.sizes, self.classes, strict=True)])
        x = torch.randn(len(y), INPUTS, generator=rng)
        test = Samples(torch.randn(6, INPUTS, generator=rng), torch.arange(6) % CLASSES)
        return Dataset("random", Samples(x, y), test, tuple("abc"), (0.5,), (0.5,))

    @staticmethod
    def _labels(size, allowed, rng):
        held = torch.tensor([label for label in range(CLASSES) if allowed >> label & 1])
        return held[torch.randint(len(held), (size,), generator=rng)]

    def model(self):
        torch.manual_seed(self.seed)
        more = {"plain": [], "batchnorm": [nn.BatchNorm1d(FEATURES)], "dropout": [nn.Dropout(0.3)]}[self.network]
        body = DoubleBody(nn.Linear(INPUTS, FEATURES), *more, nn.Tanh())
        return GivenModule.of(Model(body, nn.Linear(FEATURES, CLASSES)).double())

    def run(self, method, **execution):
        kind, number = self.length
        return from_table({
            "method": method, "model": self.model(), "split": f"test_sizes(sizes={list(self.sizes)})",
            "clients": len(self.sizes), "rounds": self.rounds, "seed": self.seed, "sample": self.sample,
            "dropout": self.dropout, "stragglers": self.stragglers,
            "local": {kind: number, "batch": self.batch, "lr": 0.1, "momentum": self.momentum, "buffers": self.buffers,
                      "weight_decay": self.weight_decay, "lr_decay": self.lr_decay, "drop_last": self.drop_last},
            "evaluation": {"local_test": self.local_test, "clients_every": 1},
            "execution": {"memory_format": "contiguous", "checkpoint_every": 1, **execution},
        })  # fmt: skip


@splits.register("test_sizes")
class Sizes(Split):
    """The samples in their order, so many to each client; some may have none."""

    sizes: tuple[int, ...] = param(default=(), doc="samples of each client")

    def assign(self, dataset, clients, rng):
        return torch.arange(sum(self.sizes)).numpy(), torch.tensor(self.sizes).numpy()


@st.composite
def federations(draw):
    sizes = draw(st.lists(st.one_of(st.integers(0, 2), st.integers(3, 9)), min_size=1, max_size=6))
    sizes[0] += max(0, len(sizes) - sum(sizes))  # a federation has at least as many samples as clients
    rounds = draw(st.integers(1, 3))
    return Federation(
        sizes=tuple(sizes),
        classes=tuple(draw(st.lists(st.integers(1, 7), min_size=len(sizes), max_size=len(sizes)))),
        network=draw(st.sampled_from(["plain", "batchnorm", "dropout"])),
        seed=draw(st.integers(0, 1000)),
        batch=draw(st.integers(1, 5)),
        length=draw(st.tuples(st.sampled_from(["epochs", "steps"]), st.integers(1, 3))),
        momentum=draw(st.sampled_from([0.0, 0.7])),
        weight_decay=draw(st.sampled_from([0.0, 0.01])),
        lr_decay=draw(st.sampled_from([1.0, 0.5])),
        drop_last=draw(st.booleans()),
        sample=draw(st.sampled_from([1.0, 1.0, 0.5])),
        dropout=draw(st.sampled_from([0.0, 0.0, 0.4])),
        stragglers=draw(st.sampled_from([0.0, 0.0, 0.5])),
        buffers=draw(st.sampled_from(["average", "local", "reset"])),
        local_test=draw(st.sampled_from(["proportional", "holdout"])),
        rounds=rounds,
        cut=draw(st.integers(0, rounds)),
        chunk=draw(st.integers(1, 4)),
    )


# ---------------------------------------------------------------------------------------------- the methods


class Past(Term):
    """Logits stay near those of the client's model after its last visit."""

    needs = ("previous",)

    def __call__(self, c, params, batch, out):
        return 0.1 * batch.mean((out.logits - c.predecessor(batch).logits).square().sum(1))


class Mapped(Term):
    """Looks at the first layer's outputs."""

    def maps(self, names):
        return names.blocks[:1]

    def __call__(self, c, params, batch, out):
        (seen,) = out.maps.values()
        return 0.01 * batch.mean(seen.square().sum(1))


TERMS = {"prox": Prox(mu=0.1), "kl": KL(), "past": Past(), "mapped": Mapped()}
REDUCERS = {
    "mean": reducers.mean, "total": reducers.total, "all": reducers.mean_over_all_clients, "concat": reducers.concat,
    "each": reducers.per_client, "delta": ("delta", reducers.total),
}  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    """Which body each slot has; `none`: the default."""

    server: str
    state: str
    prepare: str
    survey: bool
    start: str
    train: str
    gradient: str
    criterion: str
    terms: tuple[str, ...]
    extra: str
    weight: str
    weigh: bool
    remembers: bool
    personal: tuple[str, ...]
    frozen: tuple[str, ...]
    output: str
    personalise: str
    predict: str


@st.composite
def recipes(draw):
    def one(*choices):
        return draw(st.sampled_from(("none", *choices)))

    return Recipe(
        server=one("momentum", "counter"),
        state=one("visits", "noise"),
        prepare=one("made", "forward"),
        survey=draw(st.booleans()),
        start=one("aside", "outcome", "moved"),
        train=one("fold", "together", "phases", "part", "twice", "outcome"),
        gradient=one("correction", "noise", "clipped", "double"),
        criterion=one("smooth", "balanced"),
        terms=tuple(sorted(draw(st.sets(st.sampled_from(sorted(TERMS)))))),
        extra=one(*REDUCERS),
        weight=one("root", "steps", "sent"),
        weigh=draw(st.booleans()),
        remembers=draw(st.booleans()),
        personal=draw(st.sampled_from([(), ("head.*",), ("@norm",), ("body.0.bias",)])),
        frozen=draw(st.sampled_from([(), ("head.bias",), ("body.0.*",)])),
        output=draw(st.sampled_from(["global", "personal", "both", "tuned"])),
        personalise=one("step", "outcome"),
        predict=one("scaled"),
    )


def compose(recipe):
    """A method with the recipe's slots, and only these."""
    slots = {
        name: body for make in (_server, _client, _loss, _training, _replies, _tests) for name, body in make(recipe)
    }
    output = "both" if recipe.personal and recipe.output == "global" else recipe.output  # else it may be refused
    declared = {"personal": recipe.personal, "frozen": recipe.frozen, "output": output}
    if recipe.extra != "none":
        name = "summed" if recipe.extra == "delta" else "extra"
        declared["reducers"] = {**Method.reducers, name: REDUCERS[recipe.extra]}
    if recipe.survey:
        declared["survey_reducers"] = {"counts": reducers.total, "means": reducers.mean}
    return type("Random", (Method,), {"__doc__": "A method of random slots.", **slots, **declared})


def _see(c, **numbers):
    """Notes what a slot sees, so that the clients' rows tell whether it is the same everywhere."""
    for name, value in numbers.items():
        c.diagnostics.note(f"seen_{name}", torch.as_tensor(value).double())


def _size(own):
    return tree.norm({name: value.double() for name, value in own.items() if value.is_floating_point()})


def _server(recipe):
    extends = recipe.server != "none"

    def init(self, s):
        server = Method.init(self, s)
        if recipe.server == "momentum":
            server["velocity"] = tree.zeros_like(self.shared(s, server["model"]))
        if recipe.server == "counter":
            server["counter"] = {"rounds": torch.zeros(()), "noise": torch.randn(2, generator=s.rng("counter"))}
        return server

    def download(self, s, server, client):
        message = Method.download(self, s, server, client)
        if recipe.server == "momentum":
            message["velocity"] = server["velocity"]
        if recipe.server == "counter":
            message["counter"] = server["counter"]
        if recipe.remembers:
            known = s.per_client.get(client)
            message["known"] = (
                known["known"] if known else {"visits": torch.zeros(()), "norm": torch.zeros(()).double()}
            )
        return message

    def update(self, s, server, merged):
        s.record["replied"] = list(s.replied)
        if recipe.remembers:
            for client in s.replied:
                before = s.per_client.get(client)
                visits = before["known"]["visits"] if before else torch.zeros(())
                s.per_client.put(client, {"known": {"visits": visits + 1, "norm": _size(merged["delta"])}})
        server = {**server, **_read_extra(recipe, s, merged)}
        if recipe.server == "momentum":
            velocity = (
                tree.add_scaled(merged["delta"], server["velocity"], 0.5) if merged["delta"] else server["velocity"]
            )
            return {**Method.update(self, s, server, {**merged, "delta": velocity}), "velocity": velocity}
        if recipe.server == "counter":
            server["counter"] = {**server["counter"], "rounds": server["counter"]["rounds"] + 1}
        return Method.update(self, s, server, merged)

    if extends:
        yield "init", init
    if extends or recipe.remembers:
        yield "download", download
    if extends or recipe.remembers or recipe.extra != "none":
        yield "update", update
    if recipe.survey:
        yield from _survey()


def _read_extra(recipe, s, merged):
    """What the server makes of the additional group, as a tree of its state."""
    if recipe.extra == "none":
        return {}
    found = merged["summed" if recipe.extra == "delta" else "extra"]
    if recipe.extra == "each":
        s.record["each"] = list(found)
        found = {"total": torch.stack([own["mean"] * weight for own, weight in found.values()]).sum(0)}
    if recipe.extra == "concat":
        s.record["rows"] = len(found.get("mean", ()))
        found = {"total": found["mean"].sum(0)} if found else {}
    return {"extra": {name: value.double() for name, value in found.items()}}


def _survey():
    def survey(self, c):
        total = torch.zeros(FEATURES, dtype=torch.float64)
        for batch in c.passes(3):
            hot = batch.one_hot(c.num_classes).double()
            total = total + (hot.T @ c.features(c.received["model"], batch.x, "eval")).sum(0)
        return {"counts": {"classes": c.counts.double()}, "means": {"features": total / c.num_samples.clamp(min=1)}}

    def digest(self, s, server, surveyed):
        known = server.get("surveyed") or {"classes": torch.zeros(CLASSES).double()}
        return {**server, "surveyed": {"classes": known["classes"] + surveyed["counts"].get("classes", 0.0)},
                "features": dict(surveyed["means"])}  # fmt: skip

    def brief(self, s, server, client):
        return {"surveyed": server["surveyed"]} if "surveyed" in server else {}

    yield from (("survey", survey), ("digest", digest), ("brief", brief))


def _client(recipe):
    def init_client(self, c):
        if recipe.state == "visits":
            return {"own": {"visits": torch.zeros(()), "last": tree.zeros_like(c.received["model"])["head.bias"]}}
        return {"own": {"noise": c.draw("first", lambda rng: torch.randn(3, generator=rng))}}

    def keep(self, c, params):
        kept = Method.keep(self, c, params)
        if recipe.state == "visits":
            kept["own"] = {"visits": c.state["own"]["visits"] + 1, "last": params["head.bias"]}
        else:
            kept["own"] = {
                "noise": 0.5 * c.state["own"]["noise"] + c.draw("keep", lambda rng: torch.randn(3, generator=rng))
            }
        return kept

    def prepare(self, c):
        scale = 1 + 0.1 * torch.tanh(c.num_samples / 10)
        if recipe.prepare == "made":
            return c.with_made(scales={"scale": scale})

        def forward(params, x, mode="train", **options):
            out = c.forward(params, x, mode, **options)
            return out._replace(logits=out.logits * scale)

        return c.with_forward(forward)

    def start(self, c):
        params = c.received["model"]
        held = {
            name: sum(map(_size, groups.values()), 0.0) for name, groups in (("message", c.message), ("state", c.state))
        }
        counts = (c.counts * torch.arange(1, CLASSES + 1)).sum()
        _see(c, samples=c.num_samples, counts=counts, received=_size(params), **held)
        if recipe.start == "aside":
            gentle = c.aside(lr=0.01, epochs=1, steps=None, batch=4, momentum=0.0, weight_decay=0.0)
            return sgd(gentle, params, self.gradient, purpose="warm")
        if recipe.start == "outcome":
            return Outcome(params, {"anchor": {"bias": 0.5 * params["head.bias"]}})
        if recipe.start == "moved":
            step = c.draw("start", lambda rng: torch.randn(CLASSES, generator=rng)).double()
            return {**params, "head.bias": params["head.bias"] + 0.01 * step}
        return params

    if recipe.state != "none":
        yield from (("init_client", init_client), ("keep", keep))
    if recipe.prepare != "none":
        yield "prepare", prepare
    yield "start", start


def _loss(recipe):
    def criterion(self, c, out, batch):
        if recipe.criterion == "smooth":
            return 0.9 * batch.cross_entropy(out.logits) - 0.1 * batch.mean(out.logits.log_softmax(-1).mean(1))
        return batch.cross_entropy(out.logits + (c.counts + 1.0).double().log())

    def correction(self, c, params, batch):
        pull = tree.sub(tree.select(params, c.trainable), tree.select(c.received["model"], c.trainable))
        pull = {name: value + c.message.get("velocity", {}).get(name, 0.0) for name, value in pull.items()}
        return tree.scale(pull, 0.1)

    def gradient(self, c, params, batch):
        grads = Method.gradient(self, c, params, batch)
        if recipe.gradient == "noise":
            drawn = c.draw(f"noise/{c.step}", lambda rng: torch.randn(CLASSES, generator=rng)).double()
            return {**grads, **({"head.bias": grads["head.bias"] + 0.01 * drawn} if "head.bias" in grads else {})}
        if recipe.gradient == "clipped":
            length = tree.norm(grads)
            return tree.scale(grads, torch.where(length > 0.5, 0.5 / length.clamp(min=1e-12), 1.0))
        there = {**params, **tree.add_scaled(tree.select(params, grads), grads, 0.05)}
        again = c.grad(lambda p: self.loss(c, p, batch), there)
        return tree.add_scaled(grads, again, 0.5)

    if recipe.criterion != "none":
        yield "criterion", criterion
    if recipe.gradient == "correction":
        yield "correction", correction
    elif recipe.gradient != "none":
        yield "gradient", gradient
    if recipe.terms:
        yield "own_terms", lambda self: tuple(TERMS[name] for name in recipe.terms)


def _training(recipe):
    def fold(self, c, params):
        def step(groups, batch):
            grads = self.gradient(c, groups["params"], batch)
            moved = tree.add_scaled(groups["params"], grads, -c.settings.lr)
            return {
                "params": {**groups["params"], **moved},
                "seen": {"n": groups["seen"]["n"] + batch.one_hot(CLASSES).sum()},
            }

        done = c.fold(step, {"params": params, "seen": {"n": torch.zeros(())}})
        return Outcome(done["params"], {"seen": done["seen"]})

    def together(self, c, params):
        def both(c, params, pair):
            return tree.scale(tree.add(*(self.gradient(c, params, batch) for batch in pair)), 0.5)

        return sgd(c, params, both, together=2)

    def train(self, c, params):
        head = tuple(name for name in c.trainable if name.startswith("head."))
        match recipe.train:
            case "fold":
                return fold(self, c, params)
            case "together":
                return together(self, c, params)
            case "phases":
                if head and head != c.trainable:
                    params = sgd(c.with_fields(trainable=head), params, self.gradient, epochs=1, purpose="head")
                return sgd(c, params, self.gradient)
            case "part":
                return sgd(c.draw_part(0.5, "part"), params, self.gradient)
            case "twice":
                other = sgd(c.aside(lr=0.05), params, self.gradient, purpose="other")
                mine = sgd(c, params, self.gradient)
                return tree.lerp(mine, other, 0.25)
            case _:
                return Outcome.of(Method.train(self, c, params), was={"bias": params["head.bias"]})

    if recipe.train != "none":
        yield "train", train


def _replies(recipe):
    def upload(self, c, params):
        reply = Method.upload(self, c, params)
        made = [_size(own) for name, own in c.made.items() if not name.startswith("seen by")]  # by sample: padded
        _see(c, steps=c.num_steps, made=sum(made, 0.0), delta=_size(reply["delta"]))
        if recipe.extra in ("none", "delta"):
            return reply
        total = torch.zeros(CLASSES, dtype=torch.float64)
        for batch in c.passes(4):
            total = total + batch.one_hot(c.num_classes).double().sum(0)
        mean = (total / c.num_samples.clamp(min=1)) * (1 + params["head.bias"].sum())
        return {**reply, "extra": {"mean": mean.unsqueeze(0) if recipe.extra == "concat" else mean}}

    def weight(self, c, params):
        if recipe.weight == "root":
            return c.num_samples.sqrt()
        if recipe.weight == "steps":
            return 1 + c.num_steps
        return 1 / (1 + _size(c.sent["delta"]))

    def weigh(self, s, replies):
        return [reply.weight / (1 + float(_size(reply.groups["delta"]))) for reply in replies]

    yield "upload", upload
    if recipe.weight != "none":
        yield "weight", weight
    if recipe.weigh:
        yield "weigh", weigh


def _tests(recipe):
    def personalise(self, c):
        params = c.received["model"]
        if recipe.personalise == "outcome":
            return Outcome(params, {"shift": {"by": c.counts.double() / 10}})
        return sgd(c.aside(lr=0.05, epochs=1, steps=None), params, self.gradient, purpose="tune")

    def predict(self, c, params, x):
        logits = Method.predict(self, c, params, x)
        return logits * 2 + (c.made["shift"]["by"] if "shift" in c.made else 0.0)

    if recipe.personalise != "none":
        yield "personalise", personalise
    if recipe.predict != "none":
        yield "predict", predict


# ----------------------------------------------------------------------------------------------- the checks

NUMBERS = itertools.count()


@contextlib.contextmanager
def registered(recipe):
    name = f"test_random_{next(NUMBERS)}"
    try:
        methods.register(name)(compose(recipe))
        yield name
    finally:
        methods._classes.pop(name, None)


class Story:
    """All that a run left: the model, rows, clients' states; or why it was refused."""

    def __init__(self, federation, method, folder, cut=None, **execution):
        self.folder, self.refused, self.states, self.server = folder, None, {}, {}
        config, data = federation.run(method, **execution), federation.data()
        with self._look_on():
            try:
                if cut is None:
                    result = engine.run(config, folder, dataset=data)
                else:
                    result = self._cut_and_resume(config, data, cut)
            except (InputError, ClientError) as error:
                self.refused = str(error).replace(str(folder), "RUN")
                return
        self.result, self.server = result, result.server

    def _cut_and_resume(self, config, data, cut):
        def stop(row):
            if row["round"] == cut:
                raise KeyboardInterrupt

        with contextlib.suppress(KeyboardInterrupt):
            engine.run(config, self.folder, dataset=data, watch=stop)
        return engine.resume(self.folder, dataset=data, model=config.model)

    @contextlib.contextmanager
    def _look_on(self):
        plain = StateStore.put

        def put(store, client, state, round_):
            self.states[str(store.path) if hasattr(store, "path") else "", client] = state
            plain(store, client, state, round_)

        StateStore.put = put
        try:
            yield
        finally:
            StateStore.put = plain

    def rows(self, file):
        rows = [json.loads(line) for line in (self.folder / file).read_text().splitlines()]
        return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]

    @property
    def flat_states(self):
        return {(client, group, name): value for (_, client), state in self.states.items()
                for group, own in state.items() for name, value in own.items()}  # fmt: skip


def assert_same(mine, reference):
    """Bit for bit."""
    assert mine.refused == reference.refused
    if reference.refused:
        return
    assert (mine.folder / "model.safetensors").read_bytes() == (reference.folder / "model.safetensors").read_bytes()
    assert_trees(mine.server, reference.server, torch.equal)
    for file in ("rounds.jsonl", "clients.jsonl"):
        assert mine.rows(file) == reference.rows(file)
    assert mine.flat_states.keys() == reference.flat_states.keys()
    for key, value in reference.flat_states.items():
        assert torch.equal(mine.flat_states[key], value), key


def assert_trees(mine, reference, alike):
    assert {(g, n) for g, own in mine.items() for n in own} == {(g, n) for g, own in reference.items() for n in own}
    for group, own in reference.items():
        for name, value in own.items():
            assert alike(mine[group][name], value), (group, name, mine[group][name], value)


def assert_alike(mine, reference):
    """Up to rounding: the server's state, what clients keep, every number of every row."""
    assert mine.refused == reference.refused
    if reference.refused:
        return
    assert_trees(mine.server, reference.server, close)
    assert mine.flat_states.keys() == reference.flat_states.keys()
    for key, value in reference.flat_states.items():
        assert close(mine.flat_states[key], value), (key, mine.flat_states[key], value)
    for file in ("rounds.jsonl", "clients.jsonl"):
        for ours, theirs in zip(mine.rows(file), reference.rows(file), strict=True):
            assert alike(ours, theirs), (ours, theirs)


def close(mine, reference):
    return mine.shape == reference.shape and torch.allclose(
        mine.double(), reference.double(), rtol=TOLERANCE, atol=1e-9
    )


def alike(mine, reference):
    """Numbers up to rounding, all else equal."""
    if isinstance(reference, dict):
        return mine.keys() == reference.keys() and all(alike(mine[key], value) for key, value in reference.items())
    if isinstance(reference, list):
        return len(mine) == len(reference) and all(map(alike, mine, reference))
    if isinstance(reference, float):
        return isinstance(mine, float) and math.isclose(mine, reference, rel_tol=1e-5, abs_tol=1e-7)
    return mine == reference


def check(federation, recipe, caplog):
    folder = Path(tempfile.mkdtemp(prefix="unskew-random-"))
    caplog.clear()
    try:
        with registered(recipe) as method:
            serial = Story(federation, method, folder / "serial")
            note(f"serial refused: {serial.refused}")
            assert_same(Story(federation, method, folder / "pool", executor="pool", workers=2), serial)
            if not serial.refused:
                assert_same(Story(federation, method, folder / "cut", cut=federation.cut), serial)
            caplog.clear()
            stacked = Story(federation, method, folder / "stacked", executor="stacked", chunk=federation.chunk)
            event("one by one" if "one by one" in caplog.text else "refused" if serial.refused else "stacked")
            note(f"log: {caplog.text}")
            assert_alike(stacked, serial)
    finally:
        shutil.rmtree(folder)


QUIET = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much]


@given(federations(), recipes())
@settings(max_examples=24, derandomize=True, deadline=None, database=None, suppress_health_check=QUIET)
def test_random_methods_on_random_federations(caplog, federation, recipe):
    caplog.set_level(logging.WARNING)
    check(federation, recipe, caplog)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@given(federations(), recipes())
@settings(max_examples=300, derandomize=True, deadline=None, database=None, suppress_health_check=QUIET)
def test_many_random_methods_on_random_federations(caplog, federation, recipe):
    caplog.set_level(logging.WARNING)
    check(federation, recipe, caplog)


@pytest.fixture(autouse=True, scope="module")
def only_here():
    yield
    splits._classes.pop("test_sizes", None)
