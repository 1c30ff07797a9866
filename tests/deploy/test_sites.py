"""Sites in this process: a federation of them is the simulation, bit for bit, and what is wrong is dropped by name."""

import itertools
import json
import pickle
import random
import re
import resource

import pytest
import torch
from hypothesis import given
from hypothesis import settings as settings_of
from hypothesis import strategies as st

import unskew
from small_runs import equal
from unskew import Dataset, Samples
from unskew.base import storage
from unskew.base.errors import InputError
from unskew.deploy import messages
from unskew.deploy.channel import Refused
from unskew.deploy.messages import Answer, Request
from unskew.deploy.server import OverSites, Terms, TooFewAnswers, prepare_for_sites
from unskew.deploy.site import Site
from unskew.runs import engine
from unskew.runs.arguments import to_run

SEVEN = ["fedavg", "scaffold", "fedas", "fedblade", "flfa(fedprox)", "fedsol",
         "fedaf(ipc=2, steps=3, server_epochs=2)"]  # fmt: skip
RUN = "a1b2c3d4-test"


def settings(method, rounds=2, **more):
    return {"method": method, "model": "cnn8(norm=batch)", "rounds": rounds, "local": {"batch": 16, "epochs": 1},
            "evaluation": {"local_test": "holdout"}, **more}  # fmt: skip


@pytest.fixture(scope="module")
def federation():
    """Three sites of unlike sizes, and the server's test samples; with the data set that a simulation has."""
    digits = unskew.load("digits")
    ends = [0, 90, 150, 300]
    parts = [Samples(digits.train.x[a:b], digits.train.y[a:b]) for a, b in itertools.pairwise(ends)]
    groups = torch.repeat_interleave(torch.arange(3), torch.tensor([90, 60, 150]))
    whole = Dataset("three", digits.train.take(torch.arange(300)), digits.test, digits.classes, digits.mean, digits.std,
                    groups=groups, group_names=("a", "b", "c"))  # fmt: skip
    return parts, whole


class Loopback:
    """Requests go to sites in this process; `change` may spoil what they answer."""

    def __init__(self, sites, change=None):
        self.sites, self.change, self.sent = sites, change or (lambda client, request, answer: answer), []

    def exchange(self, requests):
        for client, data in requests.items():
            self.sent.append((client, data))
            answer = self.change(client, messages.decode_request(data)[0], self.sites[client].answer(data))
            if answer is not None:
                yield client, answer


def play(federation, folder, method, change=None, terms=None, out=None, proceed=False, **more):
    parts, whole = federation
    sites = [Site(samples, folder / f"site-{number}") for number, samples in enumerate(parts)]
    server = Dataset("server", whole.test, whole.test, whole.classes, whole.mean, whole.std)
    transport = Loopback(sites, change)
    prepared = prepare_for_sites(to_run(settings(method, **more)), server, 3)

    def make(config, task):
        return OverSites(config, task, RUN, transport, ("north", "south", "west"), terms or Terms())

    if proceed:
        return engine.proceed(out, prepared, executor=make), transport
    return engine.start(prepared, out, executor=make), transport


def simulate(federation, method, **more):
    return engine.run(to_run(settings(method, **more, split="natural")), dataset=federation[1])


@pytest.mark.parametrize("method", SEVEN)
def test_a_federation_of_sites_is_the_simulation(federation, tmp_path, method):
    real, _ = play(federation, tmp_path, method)
    simulated = simulate(federation, method)
    assert equal(real, simulated)
    for one, other in zip(real.rounds, simulated.rounds, strict=True):
        assert (one.get("accuracy"), one.get("personal")) == (other.get("accuracy"), other.get("personal"))


def test_no_sample_and_no_state_leaves_a_site(federation, tmp_path):
    _, transport = play(federation, tmp_path, "fedper")
    answers = b"".join(transport.sites[client].answer(data) for client, data in transport.sent)
    for number in range(3):
        [*_, last] = sorted((tmp_path / f"site-{number}" / RUN).glob("state-*"))
        for own in storage.decode(last.read_bytes()).values():
            for value in own.values():
                if value.numel() > 1:
                    assert value.numpy().tobytes() not in answers
        for row in federation[0][number].x[:5]:
            assert row.numpy().tobytes() not in answers


# ------------------------------------------------------------------------------------ what is wrong is dropped


def spoil(answer, groups=None, **head):
    known, own = messages.decode_answer(answer)
    return storage.encode(own if groups is None else groups, {**known.model_dump(), **head})


def with_value(answer, value):
    _, groups = messages.decode_answer(answer)
    name = next(iter(groups["delta"]))
    changed = groups["delta"][name].clone()
    changed.view(-1)[0] = value
    return spoil(answer, {**groups, "delta": {**groups["delta"], name: changed}})


def without_one(answer):
    _, groups = messages.decode_answer(answer)
    return spoil(answer, {**groups, "delta": dict(list(groups["delta"].items())[1:])})


def in_double(answer):
    _, groups = messages.decode_answer(answer)
    return spoil(answer, {**groups, "delta": {name: value.double() for name, value in groups["delta"].items()}})


def flat(answer):
    _, groups = messages.decode_answer(answer)
    return spoil(answer, {**groups, "delta": {name: value.reshape(-1) for name, value in groups["delta"].items()}})


SPOILT = {
    "NaN or infinite values in group 'delta'": lambda answer: with_value(answer, float("nan")),
    r"delta/body.*expected nothing, got|delta/body.*expected .*, got nothing": without_one,
    r"delta/.*expected .*float32, got .*float64": in_double,
    r"delta/.*expected \[.*, .*\] float32, got \[\d+\]": flat,
    "bytes, expected at most": lambda answer: answer + bytes(30_000_000),
    "no message of unskew": lambda answer: pickle.dumps({"delta": torch.zeros(3)}),
    "no message of unskew: ": lambda answer: answer[: len(answer) // 2],
    r"it answers another request \(of round 1\)": lambda answer: spoil(answer, asked="0" * 64),
    "it answers another request": lambda answer: spoil(answer, run="ffffffff-other"),
    "its head is wrong: weight": lambda answer: spoil(answer, weight="many"),
    "its head is wrong: more": lambda answer: spoil(answer, more=1),
    "a weight of -1": lambda answer: spoil(answer, weight=-1.0),
    "no answer in time": lambda answer: None,
}


@pytest.mark.parametrize("reason", SPOILT)
def test_what_cannot_be_used_is_dropped_by_name_and_the_round_goes_on(federation, tmp_path, caplog, reason):
    def change(client, request, answer):
        return SPOILT[reason](answer) if (request.kind, request.round, client) == ("train", 1, 1) else answer

    result, _ = play(federation, tmp_path, "fedavg", change, Terms(min_replies=2, limit=20_000_000))
    assert [row["excluded"] for row in result.rounds[1:]] == [[1], []]
    assert re.search(reason, result.rounds[1]["faults"]["1"])
    if reason != "no answer in time":
        assert re.search(f"south: its answer was dropped: .*({reason})", caplog.text)


def test_a_replayed_answer_is_dropped(federation, tmp_path):
    earlier = {}

    def change(client, request, answer):
        if request.kind == "train":
            earlier.setdefault(client, answer)
            return earlier[client] if client == 2 else answer
        return answer

    result, _ = play(federation, tmp_path, "fedavg", change)
    assert [row["excluded"] for row in result.rounds[1:]] == [[], [2]]
    assert result.rounds[2]["faults"] == {"2": "it answers another request (of round 1)"}


def test_a_round_with_too_few_answers_stops_and_can_be_resumed(federation, tmp_path):
    lost = {"now": True}

    def change(client, request, answer):
        return None if lost["now"] and request.kind == "train" and request.round == 2 and client != 0 else answer

    options = {"rounds": 3, "terms": Terms(min_replies=2), "out": tmp_path / "run"}
    whole, _ = play(federation, tmp_path / "whole", "scaffold", rounds=3)
    with pytest.raises(
        TooFewAnswers, match="round 2: 1 of 3 sites gave an answer that can be used, expected at least 2"
    ):
        play(federation, tmp_path / "sites", "scaffold", change, **options)
    lost["now"] = False
    resumed, transport = play(federation, tmp_path / "sites", "scaffold", change, proceed=True, **options)
    assert equal(whole, resumed)
    assert [messages.decode_request(data)[0].round for client, data in transport.sent if client == 0][:2] == [0, 2]


def test_sites_follow_a_server_that_goes_back(federation, tmp_path):
    """The server loses its last rounds: sites train them again from what they kept before."""
    whole, _ = play(federation, tmp_path / "whole", "scaffold", rounds=4)

    def stop(row):
        if row["round"] == 3:
            raise KeyboardInterrupt

    parts, data = federation
    folder, out = tmp_path / "sites", tmp_path / "run"
    execution = {"checkpoint_every": 100}
    sites = [Site(samples, folder / f"site-{number}") for number, samples in enumerate(parts)]
    server = Dataset("server", data.test, data.test, data.classes, data.mean, data.std)
    prepared = prepare_for_sites(to_run(settings("scaffold", 4, execution=execution)), server, 3)

    def make(config, task):
        return OverSites(config, task, RUN, Loopback(sites), ("north", "south", "west"), Terms())

    with pytest.raises(KeyboardInterrupt):
        engine.start(prepared, out, watch=stop, executor=make)
    for path in (out / "checkpoint").iterdir():
        path.unlink()  # as after a disk that lost its last writes
    resumed = engine.proceed(out, prepared, executor=make)
    assert equal(whole, resumed)


def test_a_request_that_comes_twice_trains_nobody_twice(federation, tmp_path):
    _, transport = play(federation, tmp_path, "scaffold")
    client, data = next((c, d) for c, d in reversed(transport.sent) if messages.decode_request(d)[0].kind == "train")
    site = transport.sites[client]
    states = {path.name: path.stat().st_mtime_ns for path in (site.folder / RUN).glob("state-*")}
    assert site.answer(data) == site.answer(data)
    assert states == {path.name: path.stat().st_mtime_ns for path in (site.folder / RUN).glob("state-*")}
    again = Site(site.samples, site.folder)  # started anew, it still knows the run and its last answer
    assert again.answer(data) == site.answer(data)


def open_with(federation, tmp_path, **about):
    _, transport = play(federation, tmp_path, "fedavg", rounds=1)
    head = messages.decode_request(transport.sent[0][1])[0]
    request = Request(run=RUN, round=0, client=0, kind="open", about={**head.about, **about})
    answer, _ = messages.decode_answer(transport.sites[0].answer(messages.encode(request, {})))
    return answer


def known_run(federation, tmp_path):
    _, transport = play(federation, tmp_path / "known", "fedavg", rounds=1)
    return messages.decode_request(transport.sent[0][1])[0].about["run"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"plugins": ["/etc/evil.py"]}, "no run that a site may read"),
        ({"data": "npz:/etc/passwd"}, "no run that a site may read"),
        ({"model": "python:evil.py:make"}, "names code by its place"),
        ({"model": {"name": "python", "target": "evil:make"}}, "names code by its place"),
        ({"method": "nosuchmethod"}, "cannot be built here: unknown method"),
        ({"clients": 0}, "cannot be built here|client 0 of 0"),
        ({"clients": 10**9}, "client 0 of 1000000000"),
    ],
)
def test_a_site_runs_no_code_and_reads_no_file_that_a_server_names(federation, tmp_path, change, reason):
    answer = open_with(federation, tmp_path, run={**known_run(federation, tmp_path), **change})
    assert answer.kind == "failed" and re.search(reason, answer.reason), answer.reason


def test_a_run_with_measures_is_refused(federation, tmp_path):
    with pytest.raises(InputError, match="sites measure nothing yet"):
        play(federation, tmp_path, "fedavg", measure=["drift"])


def test_a_site_whose_samples_do_not_fit_says_so(federation, tmp_path):
    facts = {"classes": list("0123456789"), "shape": [3, 32, 32], "type": "uint8", "mean": [0.5] * 3, "std": [0.5] * 3}
    answer = open_with(federation, tmp_path, data=facts)
    assert answer.kind == "failed" and "have the shape (1, 8, 8), the run expects (3, 32, 32)" in answer.reason


# ----------------------------------------------------------------------------------------------- the decoder

HEAD = Answer(run=RUN, round=1, client=0, kind="done", asked="0" * 64).model_dump()
GOOD = storage.encode({"delta": {"w": torch.ones(3, 2)}, "more": {"n": torch.arange(4)}}, HEAD)


def read(data):
    """An answer, or a reason; nothing else ever comes out of the decoder."""
    try:
        head, groups = messages.decode_answer(data, 1 << 20)
    except Refused as error:
        assert str(error) and "\n" not in str(error) and len(str(error)) < 400
        return
    assert isinstance(head, Answer)
    assert sum(value.numel() for own in groups.values() for value in own.values()) <= len(data)


FLIPS = st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=6)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3), max_leaves=6,
)  # fmt: skip


def flip(data, changes):
    changed = bytearray(data)
    for place, value in changes:
        changed[place] = value
    return bytes(changed)


def with_header(header):
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(24)


def made(seed):
    """One of many kinds of damage, drawn from a seed: faster than hypothesis for very many."""
    rng = random.Random(seed)
    kind = rng.randrange(5)
    if kind == 0:
        return rng.randbytes(rng.randrange(200))
    if kind == 1:
        return flip(GOOD, [(rng.randrange(len(GOOD)), rng.randrange(256)) for _ in range(rng.randrange(1, 9))])
    if kind == 2:
        return GOOD[: rng.randrange(len(GOOD))] + rng.randbytes(rng.randrange(20))
    length = rng.choice([0, 1, 2**31, 2**63, len(GOOD), rng.randrange(2**64)])
    if kind == 3:
        return length.to_bytes(8, "little") + GOOD[8:]
    shape = [rng.choice([0, 1, 2**20, 2**40, -1, 2**63]) for _ in range(rng.randrange(5))]
    order = json.dumps({"order": {"delta": ["w"]}, "notes": HEAD})
    entry = {"dtype": rng.choice(["F32", "F64", "I64", "X", "BOOL"]), "shape": shape, "data_offsets": [0, 24]}
    return with_header({"__metadata__": {"unskew": order}, "delta/w": entry})


@given(st.one_of(st.binary(max_size=300), FLIPS.map(lambda changes: flip(GOOD, changes)), PLAIN.map(with_header)))
@settings_of(max_examples=300, deadline=None)
def test_the_decoder_gives_an_answer_or_a_reason(data):
    read(data)


@pytest.mark.slow
def test_a_hundred_thousand_damaged_messages(tmp_path):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for seed in range(100_000):
        read(made(seed))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # KiB: nothing was allocated for them


def test_some_damaged_messages():
    for seed in range(1000):
        read(made(seed))
    head, groups = messages.decode_answer(GOOD)
    assert head.kind == "done" and torch.equal(groups["delta"]["w"], torch.ones(3, 2))
