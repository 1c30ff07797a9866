"""What the coming baselines ask of the core, each carried by a throw-away method: the seams, not the methods."""

import json

import pytest
import torch
import torch.nn.functional as F

from awkward import DATA, config, play, rows_without_times
from support import STACKED_TOLERANCE, gap, initial_model
from unskew.base import tree
from unskew.base.errors import InputError, SlotError
from unskew.base.registry import param
from unskew.core import held, local_loop
from unskew.core.context import Outcome
from unskew.core.jobs import Job
from unskew.core.method import Method, methods
from unskew.core.observer import Observer, gather_reducers
from unskew.core.reducers import Reducer, total
from unskew.core.term import Term, terms
from unskew.core.wrapper import Wrapper
from unskew.runs import building, engine

CONTIGUOUS = {"memory_format": "contiguous"}


# --------------------------------------------------------------------------------- the throw-away methods


@terms.register("test_moon")
class Contrast(Term):
    """MOON's loss: near the received model's features, away from those of the client's previous model."""

    needs = ("teacher", "previous")
    proximal = True

    mu: float = param(default=1.0, ge=0, doc="strength")
    tau: float = param(default=0.5, gt=0, doc="temperature")

    def __call__(self, c, params, batch, out):
        near = F.cosine_similarity(out.features, c.teacher(batch).features, dim=1) / self.tau
        far = F.cosine_similarity(out.features, c.predecessor(batch).features, dim=1) / self.tau
        return self.mu * batch.mean(-F.log_softmax(torch.stack([near, far], 1), 1)[:, 0])


@methods.register("test_ditto")
class Ditto(Wrapper):
    """A second, personal model with statistics of its own, trained beside the inner method's."""

    weight_of_prox: float = param(default=0.5, ge=0, doc="lambda")

    output = "personal"

    def init_client(self, c):
        own = {"own": c.initial["model"], "own_buffers": c.initial["buffers"]}
        return {**self.inner.init_client(c), **{name: group for name, group in own.items() if group}}

    def train(self, c, params):
        def gradient(c, v, batch):
            grads = c.grad(lambda p: batch.cross_entropy(c.forward(p, batch.x).logits), v)
            return {name: grad + self.weight_of_prox * (v[name] - c.received["model"][name])
                    for name, grad in grads.items()}  # fmt: skip

        aside = c.aside().with_buffers(c.state.get("own_buffers", {}))
        own = local_loop.sgd(aside, c.state["own"], gradient, purpose="ditto")
        return Outcome.of(self.inner.train(c, params), own=own, own_buffers=aside.buffers)

    def keep(self, c, params):
        own = {name: c.made[name] for name in ("own", "own_buffers") if c.made[name]}
        return {**self.inner.keep(c, params), **own}

    def personalise(self, c):
        return Outcome(c.state["own"], {"statistics": c.state.get("own_buffers", {})})

    def predict(self, c, params, x):
        return c.forward(params, x, "eval", buffers=c.made.get("statistics")).logits


@methods.register("test_krum")
class Krum(Method):
    """Only the client counts whose update is nearest to the others'; its statistics go with it."""

    def weigh(self, s, replies):
        flat = torch.stack([torch.cat([v.flatten() for v in reply.groups["delta"].values()]) for reply in replies])
        chosen = int(torch.cdist(flat.double(), flat.double()).sum(1).argmin())
        s.record["chosen"] = replies[chosen].client
        return [float(place == chosen) for place in range(len(replies))]


@methods.register("test_babu")
class Babu(Method):
    """The head is never trained in the rounds."""

    frozen = ("head.*",)


@methods.register("test_two_batches")
class TwoBatches(Method):
    """Per-FedAvg, first order: a step on one batch, the gradient there on another."""

    def train(self, c, params):
        return local_loop.sgd(c, params, self._meta_gradient, together=2)

    def _meta_gradient(self, c, params, batches):
        first, second = batches
        there = tree.add_scaled(params, self._plain(c, params, first), -0.05)
        return self._plain(c, there, second)

    def _plain(self, c, params, batch):
        return c.grad(lambda p: batch.cross_entropy(c.forward(p, batch.x).logits), params)


@methods.register("test_folds")
class Folds(Method):
    """A loop of its own, with a kind of momentum that would go on without a batch."""

    def train(self, c, params):
        def step(at, batch):
            grads = c.grad(lambda p: batch.cross_entropy(c.forward(p, batch.x).logits), at["model"])
            pace = tree.add(tree.scale(at["pace"], 0.9), grads)
            return {"model": tree.add_scaled(at["model"], pace, -c.settings.lr), "pace": pace}

        return c.fold(step, {"model": params, "pace": tree.zeros_like(params)})["model"]


@methods.register("test_loops")
class Loops(Method):
    """The same in a bare loop, which is wrong where clients have different numbers of batches."""

    def train(self, c, params):
        pace = tree.zeros_like(params)
        for batch in c.batches():
            at = params
            grads = c.grad(lambda p, batch=batch: batch.cross_entropy(c.forward(p, batch.x).logits), at)
            pace = tree.add(tree.scale(pace, 0.9), grads)
            params = tree.add_scaled(params, pace, -c.settings.lr)
        return params


@methods.register("test_loops_over_passes")
class LoopsOverPasses(Method):
    """Steps in a bare loop over all samples in order."""

    def train(self, c, params):
        for batch in c.passes(8):
            grads = c.grad(lambda p, batch=batch: batch.cross_entropy(c.forward(p, batch.x, "eval").logits)
                           + 0.1 * tree.sqnorm(p), params)  # fmt: skip
            params = tree.add_scaled(params, grads, -c.settings.lr)
        return params


@methods.register("test_loops_in_place")
class LoopsInPlace(Method):
    """The same, in place on a copy of its own."""

    def train(self, c, params):
        own = c.steps.copy(params)
        for batch in c.passes(8):
            grads = c.grad(lambda p, batch=batch: batch.cross_entropy(c.forward(p, batch.x, "eval").logits)
                           + 0.1 * tree.sqnorm(p), own)  # fmt: skip
            for name, grad in grads.items():
                own[name].sub_(c.settings.lr * grad)
        return own


@methods.register("test_slices_a_batch")
class Slices(Method):
    """Passes a part of a batch, of which BatchNorm cannot know the padding."""

    def loss(self, c, params, batch):
        half = max(2, len(batch.x) // 2)
        part = c.forward(params, batch.x[:half]).logits.square().mean()
        return batch.cross_entropy(c.forward(params, batch.x).logits) + 0.01 * part


@terms.register("test_depths")
class Depths(Term):
    """A mean square of feature maps of two depths, as FedRCL compares them."""

    def maps(self, names):
        return names.blocks[0], names.blocks[3]

    def __call__(self, c, params, batch, out):
        low, high = (out.maps[name] for name in self.maps(c.names))
        return 0.1 * (batch.mean(low.flatten(1).square().mean(1)) + batch.mean(high.flatten(1).square().mean(1)))


@methods.register("test_counts_steps")
class CountsSteps(Method):
    """Weighs the loss by the step's number and the run's rounds."""

    def loss(self, c, params, batch):
        return super().loss(c, params, batch) * (1 + 0.1 * c.step + 0.01 * c.rounds)


@pytest.fixture(autouse=True, scope="module")
def only_here():
    yield
    for registry in (methods, terms):
        for name in [name for name in registry if registry.get(name).__module__ == __name__]:
            del registry._classes[name]


STACKED = [
    "fedsol(prox=test_depths, where=all)",
    "fedavg(terms=[test_moon])", "scaffold(terms=[test_moon(mu=0.5)])", "fedsol(terms=[test_moon])",
    "test_ditto(fedavg)", "test_ditto(scaffold)", "test_krum", "test_babu", "finetuned(test_babu)",
    "test_two_batches", "test_folds",
    "fedavg(terms=[test_depths])", "flfa(fedavg(terms=[test_depths]), select='fixed:body.3')",
    "fedsol(terms=[test_depths])", "test_counts_steps",
]  # fmt: skip


# ---------------------------------------------------------------------- all of them: pool, stacked, resume


@pytest.mark.parametrize("spec", [*STACKED, "test_loops", "test_loops_in_place", "test_slices_a_batch"])
def test_pool_equals_serial_and_resume_is_exact(spec, tmp_path):
    serial = play(spec, tmp_path / "serial", rounds=3)
    pool = play(spec, rounds=3, execution={"executor": "pool", "workers": 2})
    assert rows_without_times(serial) == rows_without_times(pool)

    def stop(row):
        if row["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.run(config(spec, rounds=3), tmp_path / "cut", dataset=DATA, watch=stop)
    engine.resume(tmp_path / "cut", dataset=DATA)
    assert (tmp_path / "cut/model.safetensors").read_bytes() == (tmp_path / "serial/model.safetensors").read_bytes()


@pytest.mark.parametrize("spec", STACKED)
@pytest.mark.parametrize("model", ["cnn8(norm=batch)", "cnn8"])
def test_stacked_equals_serial(spec, model, caplog):
    serial = play(spec, model=model, execution=CONTIGUOUS)
    stacked = play(spec, model=model, execution={"executor": "stacked", "chunk": 3})
    assert "one by one" not in caplog.text
    assert gap(stacked, serial, initial_model(serial.run, DATA)) < STACKED_TOLERANCE
    assert stacked.summary["personal"] == pytest.approx(serial.summary["personal"], abs=0.05)


@pytest.mark.parametrize(
    "spec, why",
    [
        ("test_loops", "a loop of its own"),
        ("test_loops_over_passes", "a loop of its own"),
        ("test_loops_in_place", "a loop of its own"),
        ("test_slices_a_batch", "cannot tell which of them are padding"),
    ],
)
def test_a_loop_of_its_own_is_refused_where_it_would_be_wrong(spec, why, caplog):
    serial = play(spec, execution=CONTIGUOUS)
    stacked = play(spec, execution={"executor": "stacked", "chunk": 3})
    assert why in caplog.text and "one by one" in caplog.text
    # the other clients are merged as if there were no stack
    assert gap(stacked, serial, initial_model(serial.run, DATA)) < 1e-6


def test_a_loop_of_its_own_may_stack_where_all_clients_have_as_many_batches(caplog):
    options = {"split": "iid", "clients": 4, "rounds": 1, "local": {"batch": 5, "epochs": 1}}
    runs = [play("test_loops", **options, execution=how) for how in (CONTIGUOUS, {"executor": "stacked", "chunk": 4})]
    assert "one by one" not in caplog.text
    assert gap(runs[1], runs[0], initial_model(runs[0].run, DATA)) < STACKED_TOLERANCE


# ------------------------------------------------------------------------------------------- one by one


def visit(spec, state=None, client=0, **options):
    task = building.prepare(config(spec, **options), dataset=DATA).task
    server = task.method.init(task.server_context(0))
    message = task.method.download(task.server_context(1), server, client)
    return task, Job("train", 1, client, message, state or {})


def test_the_previous_model_is_the_one_that_the_client_trained_last():
    task, job = visit("scaffold(terms=[test_moon])")
    first = task.work(job)
    assert {"control", "previous/model", "previous/buffers"} == set(first.state)
    c = task.visit(Job("train", 2, 0, job.message, first.state), task.federation.train(0))
    assert set(c.state) == {"control"}  # the method does not see what is kept for the term
    trained = tree.add(job.message["model"], first.groups["delta"])
    assert all(torch.allclose(c.previous["model"][name], value, atol=1e-6) for name, value in trained.items())
    batch = next(c.passes())
    before = c.forward(c.previous["model"], batch.x, "eval", buffers=c.previous["buffers"]).features
    assert torch.equal(c.predecessor(batch).features, before)
    new = task.visit(job, task.federation.train(0))
    assert new.previous["model"] is new.initial["model"]


def test_krum_takes_model_and_statistics_of_one_client():
    result = play("test_krum", rounds=1)
    chosen = result.rounds[1]["method"]["chosen"]
    task, job = visit("test_krum", client=chosen)
    reply = task.work(job)
    for name, value in result.server["model"].items():
        torch.testing.assert_close(value, job.message["model"][name] + reply.groups["delta"][name])
    for name, value in reply.groups["buffers"].items():
        if value.is_floating_point():
            torch.testing.assert_close(result.server["buffers"][name], value)


def test_shares_are_those_of_the_rule(tmp_path):
    play("test_krum", tmp_path / "run", rounds=1)
    rows = [json.loads(line) for line in (tmp_path / "run/clients.jsonl").read_text().splitlines()]
    assert sorted(row["share"] for row in rows if "share" in row) == [0.0, 0.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize("executor", ["serial", "stacked"])
def test_replies_that_wait_above_the_limit_are_on_disk(executor, monkeypatch, tmp_path):
    how = {"executor": executor, **({"chunk": 3} if executor == "stacked" else {})}
    plain = play("test_krum", execution=how)
    monkeypatch.setattr(held.HeldReplies.__init__, "__defaults__", (20_000,))
    monkeypatch.setattr(held.tempfile, "tempdir", str(tmp_path))
    written = []
    monkeypatch.setattr(held.HeldReplies, "_write", lambda self, groups, write=held.HeldReplies._write: (
        written.append(groups), write(self, groups))[1])  # fmt: skip
    spilled = play("test_krum", execution=how)
    assert written and not list(tmp_path.iterdir())
    if executor == "serial":
        assert rows_without_times(plain) == rows_without_times(spilled)
    assert gap(spilled, plain, initial_model(plain.run, DATA)) < 1e-6


@pytest.mark.parametrize("weights", [
    "[1.0]", "[float('nan')] * len(replies)", "[-1.0] * len(replies)", "{reply.client: 1.0 for reply in replies}",
    "['1'] * len(replies)", "None", "1.0", "[1.0] * 6", "torch.tensor(1.0)",
])  # fmt: skip
def test_a_rule_that_gives_no_weights_is_refused(weights):
    @methods.register("test_bad_rule")
    class BadRule(Method):
        """Gives what is no weight."""

        def weigh(self, s, replies):
            return eval(weights)

    try:
        with pytest.raises(SlotError, match=r"test_bad_rule\.weigh must return a list of 5 weights"):
            play("test_bad_rule", rounds=1)
    finally:
        del methods._classes["test_bad_rule"]


def test_a_rule_may_give_a_vector_and_all_weights_zero_are_said(caplog):
    @methods.register("test_vector_rule")
    class VectorRule(Method):
        """Nobody counts."""

        def weigh(self, s, replies):
            with pytest.raises(ValueError, match="only read"):
                s.per_client.put(0, {})
            return torch.zeros(len(replies))

    try:
        result = play("test_vector_rule", rounds=1)
        start = initial_model(result.run, DATA)
        assert all(torch.equal(value, start[name]) for name, value in result.server["model"].items())
        assert "all weights are 0" in caplog.text
    finally:
        del methods._classes["test_vector_rule"]


def test_a_reducer_must_be_one():
    @methods.register("test_bad_reducer")
    class BadReducer(Method):
        """Merges by something that is no reducer."""

        reducers = {"delta": dict}

    try:
        with pytest.raises(InputError, match=r"reducer of 'delta' must be a subclass of unskew.reducers.Reducer"):
            play("test_bad_reducer", rounds=1)
    finally:
        del methods._classes["test_bad_reducer"]
    with pytest.raises(TypeError, match="must define add"):
        Reducer(None).add({}, None)


def test_fine_tuning_also_tunes_what_was_frozen():
    for where, moves in (("all", {"head", "body"}), ("head", {"head"}), ("body", {"body"})):
        task, job = visit(f"finetuned(test_babu, where={where})")
        c = task.visit(Job("personal", 1, 0, job.message), task.federation.train(0))
        tuned = task.method.personalise(c)
        moved = {
            name.split(".")[0] for name, value in tuned.items() if not torch.equal(value, c.received["model"][name])
        }
        assert moved == moves


def test_maps_are_what_the_layers_give_also_under_feedback():
    for spec in ("fedavg(terms=[test_depths])", "flfa(fedavg(terms=[test_depths]), select='fixed:body.3')"):
        task, job = visit(spec, model="cnn8")
        c = task.visit(job, task.federation.train(0))
        batch = next(c.passes())
        out = c.forward(c.received["model"], batch.x, maps=c.maps)
        module = task.net.module
        assert list(out.maps) == ["body.0", "body.3"]
        low = module.body[0](batch.x)
        torch.testing.assert_close(out.maps["body.0"], low)
        torch.testing.assert_close(out.logits, c.forward(c.received["model"], batch.x).logits)
        assert not c.forward(c.received["model"], batch.x).maps
        with pytest.raises(InputError, match=r"no layer body\.99"):
            c.forward(c.received["model"], batch.x, maps=("body.99",))


def test_step_and_rounds_are_on_the_context():
    seen = []

    @methods.register("test_notes_steps")
    class NotesSteps(Method):
        """Notes what it is told."""

        def gradient(self, c, params, batch):
            seen.append((c.step, c.rounds))
            return super().gradient(c, params, batch)

    try:
        task, job = visit("test_notes_steps", rounds=7)
        reply = task.work(job)
        assert seen == [(number, 7) for number in range(1, reply.num_steps + 1)]
    finally:
        del methods._classes["test_notes_steps"]


def test_observers_are_objects_and_their_reducers_have_names_of_their_own():
    class Counts(Observer):
        """Merges the updates once more."""

        def reducers(self):
            return {"mine": ("delta", total)}

    for watch, line in ((3, "expected a function"), (Counts, "an object, not its class")):
        with pytest.raises(InputError, match=line):
            engine.run(config("fedavg"), dataset=DATA, watch=watch)
    engine.run(config("fedavg", rounds=1), dataset=DATA, watch=Counts())
    with pytest.raises(InputError, match="two observers have a reducer 'mine'"):
        gather_reducers((Counts(), Counts()))


# ------------------------------------------------------------------------------- what is refused before the run


@pytest.mark.parametrize(
    "spec, line",
    [
        ("fedavg(terms=[feature_alignment])", "feature_alignment needs global class prototypes.*use it in fedblade"),
        ("fedetf(terms=[projector_alignment])", "needs global class prototypes in the message, which fedetf"),
        ("flfa(fedavg, terms=[feature_alignment])", "needs global class prototypes"),
        ("fedsol(prox=feature_alignment)", "needs global class prototypes"),
        ("fedblade(pa=false, fa=false, terms=[feature_alignment])", "needs global class prototypes"),
        ("fedaf(terms=[prox])", "fedaf trains no model at its clients"),
        ("finetuned(fedaf, terms=[prox])", "trains no model at its clients"),
        ("flfa(fedper, select='fixed:head')", "no layer head that is trained and shared"),
        ("flfa(fedas, select='fixed:head')", "no layer head that is trained and shared"),
        ("fedsol(test_two_batches)", "has its own training"),
        ("fedsol(prox=test_moon)", "does not depend on what where=head moves; use where=all"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(spec, line):
    with pytest.raises(InputError, match=line) as error:
        engine.run(config(spec, model="cnn8"), dataset=DATA)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "needs, line",
    [
        ("teacher", "needs must be a tuple such as .*, got .teacher"),
        (("techer",), "did you mean teacher"),
        (("nothing like it",), "let yours declare"),
        ((), "c.predecessor is for terms that say needs"),
    ],
)
def test_needs_that_are_none_are_one_line(needs, line):
    @terms.register("test_odd")
    class Odd(Term):
        """Asks for the previous model."""

        def __call__(self, c, params, batch, out):
            return c.predecessor(batch).logits.mean()

    Odd.needs = needs
    try:
        with pytest.raises(InputError, match=line) as error:
            play("fedavg(terms=[test_odd])")
        assert "\n" not in str(error.value)
    finally:
        del terms._classes["test_odd"]


def test_init_client_sees_what_the_visit_would_start_from():
    seen = []

    @methods.register("test_first_look")
    class FirstLook(Method):
        """Looks at what it received."""

        def init_client(self, c):
            seen.append(set(c.received["model"]) == set(c.names.params))
            return {"own": {"bias": c.received["model"]["head.bias"]}}

    try:
        for executor in ("serial", "stacked"):
            play("test_first_look", rounds=2, sample=0.6, execution={"executor": executor})
        assert seen and all(seen)
    finally:
        del methods._classes["test_first_look"]


def test_terms_that_cannot_be_made_are_one_line():
    @methods.register("test_no_terms")
    class NoTerms(Method):
        """Fails to say what it is made of."""

        def own_terms(self):
            raise RuntimeError("no terms\ntoday")

    try:
        with pytest.raises(InputError, match=r"test_no_terms\.own_terms fails: RuntimeError: no terms") as error:
            play("test_no_terms")
        assert "\n" not in str(error.value)
    finally:
        del methods._classes["test_no_terms"]


def test_a_term_whose_need_a_method_declares_is_accepted():
    @terms.register("test_needs_more")
    class NeedsMore(Term):
        """Needs something that only one method has."""

        needs = ("test_something",)

        def __call__(self, c, params, batch, out):
            return c.message["something"]["one"] * out.logits.mean()

    @methods.register("test_offers")
    class Offers(Method):
        """Has it."""

        offers = ("test_something",)

        def download(self, s, server, client):
            return {**super().download(s, server, client), "something": {"one": torch.tensor(0.1)}}

    try:
        with pytest.raises(InputError, match=r"needs 'test_something', which fedavg.*use it in test_offers"):
            play("fedavg(terms=[test_needs_more])")
        assert play("test_offers(terms=[test_needs_more])").accuracy >= 0
    finally:
        del methods._classes["test_offers"], terms._classes["test_needs_more"]


# ------------------------------------------------------------------------------------ FedSOL around methods


@pytest.mark.parametrize("executor", ["serial", "pool", "stacked"])
@pytest.mark.parametrize(
    "outer, plain",
    [
        ("fedsol(fedblade, rho=0)", "fedblade"),
        ("fedsol(feddecorr, rho=0)", "feddecorr"),
        ("fedsol(fedprox, rho=0)", "fedavg"),
        ("fedsol(fedavg(terms=[prox(mu=1.0)]), rho=0)", "fedprox(mu=1.0)"),
        ("fedsol(scaffold(terms=[feddecorr]), strategy=A0, where=all)", None),
    ],
)
def test_fedsol_without_a_move_is_the_method_without_its_proximal_part(outer, plain, executor):
    how = {"executor": executor, **({"chunk": 3} if executor == "stacked" else {})}
    mine = play(outer, execution=how)
    if plain is None:
        return
    other = play(plain, execution=how)
    for group in ("model", "buffers"):
        assert all(torch.equal(value, other.server[group][name]) for name, value in mine.server[group].items())


def test_an_explicit_proximal_loss_replaces_the_methods_own_and_says_so(caplog):
    mine, plain = play("fedsol(fedprox(mu=1.0), prox=l2, where=all)"), play("fedsol(prox=l2, where=all)")
    assert "prox=l2 takes the place of prox(mu=1.0), which is left out" in caplog.text
    assert all(torch.equal(value, mine.server["model"][name]) for name, value in plain.server["model"].items())
    caplog.clear()
    play("fedsol(fedprox(mu=1.0), where=all)")
    assert "left out" not in caplog.text


def test_terms_that_the_user_adds_stay_in_the_loss():
    kept = play("fedsol(fedavg(terms=[prox(mu=5.0)]))").server["model"]
    plain = play("fedsol").server["model"]
    assert any(not torch.equal(value, kept[name]) for name, value in plain.items())
    # and do not become the proximal loss, which is still KL
    assert methods.build("fedsol(fedavg(terms=[prox(mu=5.0)]))").proximal_losses()[0].name == "kl"
