"""What the program's own signal handler raises reaches the program, on every executor, after the checkpoint."""

import functools
import os
import signal

import pytest

import unskew
from small_runs import define, play_one_step, same
from unskew.base import storage
from unskew.base.errors import InputError
from unskew.core.method import Method, methods

RUN = {"clients": 4, "rounds": 4, "model": "mlp", "split": "iid", "checkpoint_every": 10}


@methods.register("test_handlers_signalled")
class Signalled(Method):
    """A signal comes in the middle of a round's work."""

    at: int = unskew.param(default=3, doc="the round; 0: none")

    def loss(self, c, params, batch):
        if c.round == self.at:
            signal.raise_signal(signal.SIGUSR1)
        return super().loss(c, params, batch)


@methods.register("test_handlers_server")
class SignalledServer(Method):
    """A signal comes at the server."""

    def update(self, s, server, merged):
        signal.raise_signal(signal.SIGUSR1)
        return super().update(s, server, merged)


class Handler:
    """A handler may be any callable."""

    def __init__(self, error):
        self.error = error

    def __call__(self, number, frame):
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        self.fail()

    def fail(self):
        raise self.error

    def method(self, *given):
        del given
        raise self.error


@pytest.fixture
def handle():
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda handler: signal.signal(signal.SIGUSR1, handler)
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("executor", ["serial", "stacked"])
@pytest.mark.parametrize("error", [SystemExit(7), TimeoutError("too slow"), unskew.InputError("x")])
def test_in_a_clients_work(executor, error, handle, tmp_path, caplog):
    handle(Handler(error))
    with pytest.raises(type(error)) as caught:
        unskew.run("test_handlers_signalled", **RUN, executor=executor, out=tmp_path / "run")
    assert caught.value is error and "cannot run for many" not in caplog.text
    assert len((tmp_path / "run" / "rounds.jsonl").read_text().splitlines()) == 3
    assert list((tmp_path / "run").glob("checkpoint*/*2*"))


@pytest.mark.parametrize("kind", ["method", "partial", "lambda"])
def test_handlers_of_all_kinds(kind, handle):
    own = Handler(TimeoutError("too slow"))
    handle({"method": own.method, "partial": functools.partial(own.method), "lambda": lambda *_: own.fail()}[kind])
    with pytest.raises(TimeoutError):
        unskew.run("test_handlers_signalled", **RUN, executor="stacked")


@pytest.mark.parametrize("executor", ["serial", "pool"])
def test_at_the_server(executor, handle):
    handle(Handler(SystemExit(7)))
    with pytest.raises(SystemExit):
        unskew.run("test_handlers_server", **RUN, executor=executor)


def test_exit_in_watch(tmp_path):
    def watch(row):
        if row["round"] == 2:
            raise SystemExit(7)

    with pytest.raises(SystemExit) as caught:
        unskew.run(**RUN, watch=watch, out=tmp_path / "run")
    assert caught.value.code == 7 and list((tmp_path / "run").glob("checkpoint*/*2*"))


# --------------------------------------------------------------------------- while files are written or workers awaited


class Alarm(TimeoutError):
    """What a program's handler raises."""


@pytest.fixture
def alarm():
    """A handler that raises."""

    def handler(*_):
        raise Alarm("mine")

    before = signal.signal(signal.SIGALRM, handler)
    yield lambda: os.kill(os.getpid(), signal.SIGALRM)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("place", ["encode", "write_atomic", "sync_folder"])
def test_what_a_handler_raises_while_a_checkpoint_is_written_passes(place, alarm, tmp_path, monkeypatch):
    calls, usual = [], getattr(storage, place)

    def struck(*args, **options):
        if calls.append(place) or len(calls) == 3:
            alarm()
            for _ in range(1000):
                pass
        return usual(*args, **options)

    monkeypatch.setattr(storage, place, struck)
    with pytest.raises(Alarm, match=r"mine"):
        play_one_step("scaffold", out=tmp_path / "run", checkpoint_every=1, rounds=4)
    monkeypatch.undo()
    assert same(unskew.resume(tmp_path / "run").server, play_one_step("scaffold", rounds=4).server)


def test_what_the_system_says_is_still_a_line(tmp_path, monkeypatch):
    def refuse(*args, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage, "write_certified", refuse)
    with pytest.raises(InputError, match=r"cannot write a checkpoint .*: No space left on device"):
        play_one_step("scaffold", out=tmp_path / "run")


def test_what_a_handler_raises_while_a_worker_is_awaited_passes(alarm, own_names):
    def slow(self, c, params):
        if c.round == 2:
            os.kill(os.getppid(), signal.SIGALRM)
        return Method.train(self, c, params)

    with pytest.raises(Alarm, match=r"mine"):
        play_one_step(define(train=slow), executor="pool", rounds=3)
