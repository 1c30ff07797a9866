"""Runs in threads, in each other and in forked processes: each gives the figures that it gives alone."""

import gc
import logging
import multiprocessing
import os
import sys
import threading
import time
from collections import OrderedDict

import pytest
import torch
from torch import nn

import unskew
from small_runs import SKEWED, weights
from unskew.base import plugins, seeds, storage
from unskew.base.errors import InputError, SlotError
from unskew.base.process import hold_process
from unskew.base.user_code import calls
from unskew.core.net import Net
from unskew.models.base import build


def dropping():
    torch.manual_seed(0)
    layers = {"flat": nn.Flatten(), "hidden": nn.Linear(64, 16), "relu": nn.ReLU(), "drop": nn.Dropout(0.3)}
    net = nn.Sequential()
    for name, layer in {**layers, "fc": nn.Linear(16, 10)}.items():
        net.add_module(name, layer)
    return net


NET = dropping()
DROPPING = {"model": NET, "head": "fc"}
RUNS = [
    {"method": "fedavg", "executor": "serial", **DROPPING},
    {"method": "fedavg", "executor": "stacked", **DROPPING},
    {"method": "scaffold", "executor": "pool", "workers": 2, **DROPPING},
    {"method": "fedper", "executor": "serial", "seed": 5},
    {"method": "fedsol", "executor": "auto", "model": "mlp"},
    {"method": "finetuned(fedavg)", "executor": "serial", **DROPPING, "seed": 3},
]


def play(number, **more):
    return unskew.run(**{"clients": 6, "sample": 0.5, "rounds": 3, "lr": 0.05, **RUNS[number], **more})


def bits(result):
    rows = [{key: value for key, value in row.items() if key != "seconds"} for row in result.rounds]
    return storage.encode(result.server), rows


@pytest.fixture(scope="module")
def alone():
    return [bits(play(number)) for number in range(len(RUNS))]


def in_threads(*works):
    """What each function gave, called in threads that begin together."""
    found, barrier = [None] * len(works), threading.Barrier(len(works))

    def call(place):
        barrier.wait()
        try:
            found[place] = works[place]()
        except BaseException as error:
            found[place] = error

    threads = [threading.Thread(target=call, args=(place,), name=f"run-{place}") for place in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    return found


def test_runs_in_four_threads_give_the_figures_they_give_alone(alone, caplog):
    torch.manual_seed(4)
    expected = torch.rand(3)
    torch.manual_seed(4)
    before = torch.get_num_threads(), gc.get_threshold()
    orders = [[0, 1, 2, 3], [2, 0, 5, 1], [4, 5, 0], [1, 2, 3, 0]]
    with caplog.at_level(logging.WARNING):
        found = in_threads(*(lambda own=own: [bits(play(number)) for number in own] for own in orders))
    for own, gave in zip(orders, found, strict=True):
        assert gave == [alone[number] for number in own]
    waits = [record.getMessage() for record in caplog.records if "waiting for the run in thread" in record.getMessage()]
    assert waits and waits[0].endswith("runs in one process take turns")
    assert torch.equal(torch.rand(3), expected)  # the program's own stream
    assert (torch.get_num_threads(), gc.get_threshold()) == before


def test_a_run_waits_with_one_line(caplog):
    with hold_process():
        thread = threading.Thread(target=play, args=(3,))
        with caplog.at_level(logging.WARNING):
            thread.start()
            thread.join(1.0)
            assert thread.is_alive() and caplog.text.count("waiting for the run in thread 'MainThread'") == 1
    thread.join(60)
    assert not thread.is_alive() and caplog.text.count("waiting for") == 1


@pytest.mark.parametrize("inner", [0, 1, 2])
@pytest.mark.parametrize("outer", [0, 1, 2])
def test_a_run_inside_another_one_s_watch_disturbs_nothing(alone, outer, inner):
    inside = []
    watch = lambda row: inside.append(bits(play(inner))) if row["round"] == 1 else None  # noqa: E731
    assert bits(play(outer, watch=watch)) == alone[outer]
    assert inside == [alone[inner]]


def test_a_model_built_in_a_thread_disturbs_no_run(alone):
    result = play(0)
    expected = result.model().state_dict()

    def build():
        return [result.model().state_dict() for _ in range(5)]

    run, built = in_threads(lambda: [bits(play(0)), bits(play(5))], build)
    assert run == [alone[0], alone[5]]
    assert all(torch.equal(state[name], expected[name]) for state in built for name in expected)


@pytest.mark.parametrize("number", [0, 2, 5])  # stacked: such draws look like a slot's own, and it works one by one
def test_what_the_program_draws_meanwhile_changes_no_run(alone, number):
    done = threading.Event()

    def draw():
        while not done.is_set():
            torch.manual_seed(1)
            torch.rand(7)
            nn.Linear(3, 3)

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        for _ in range(3):
            assert bits(play(number)) == alone[number]
    finally:
        done.set()
        thread.join()


def test_a_run_cannot_work_on_a_folder_inside_itself(tmp_path):
    with pytest.raises(InputError, match=r"this program is working on .* already"):
        play(0, out=tmp_path / "run", watch=lambda row: unskew.resume(tmp_path / "run", **DROPPING))


# ------------------------------------------------------------------------------------------- processes


def child(numbers):
    return [bits(play(number)) for number in numbers]


@pytest.mark.parametrize(
    "how",
    [pytest.param("fork", marks=pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot fork")), "spawn"],
)
def test_runs_in_a_pool_of_processes_also_with_workers_of_their_own(alone, how):
    torch.set_num_threads(2)
    torch.randn(400, 400) @ torch.randn(400, 400)  # threads that do not survive a fork
    with multiprocessing.get_context(how).Pool(2) as pool:
        found = pool.map_async(child, [[0, 2], [1, 2]]).get(timeout=120)
    assert found == [[alone[0], alone[2]], [alone[1], alone[2]]]


def test_a_process_forked_from_a_run_can_run(alone):
    context = multiprocessing.get_context("fork")

    def fork(row):
        if row["round"] == 2:
            queue = context.Queue()
            process = context.Process(target=lambda: queue.put(child([0, 2])))
            process.start()
            found.append(queue.get(timeout=60))
            process.join(60)

    found = []
    assert bits(play(2, watch=fork)) == alone[2]
    assert found == [[alone[0], alone[2]]]


def test_a_process_forked_by_another_thread_while_a_run_is_under_way_can_run(alone):
    context, found, begun = multiprocessing.get_context("fork"), [], threading.Event()

    def fork():
        begun.wait(60)
        queue = context.Queue()
        process = context.Process(target=lambda: queue.put(child([0])))
        process.start()
        found.append(queue.get(timeout=60))
        process.join(60)

    thread = threading.Thread(target=fork)
    thread.start()

    def watch(row):
        begun.set()
        deadline = time.monotonic() + 60
        while row["round"] == 2 and not found and time.monotonic() < deadline:
            time.sleep(0.01)

    assert bits(play(0, watch=watch)) == alone[0]
    thread.join(60)
    assert found == [[alone[0]]]


LARGE = torch.randn(2000, 64)
"""A value of this module that torch adds up in several threads."""


def in_forked(work):
    """What a function gives in a process forked after torch's threads were at work."""
    torch.set_num_threads(2)
    LARGE.sum(1)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=lambda: queue.put(work()))
    process.start()
    try:
        return queue.get(timeout=60)
    finally:
        process.kill()
        process.join()


def run_on_large_data():
    samples = unskew.Samples(LARGE, torch.arange(2000) % 10)
    data = unskew.Dataset("large", samples, samples, tuple("abcdefghij"), (), ())
    result = unskew.run("fedavg", data=data, model="mlp", clients=4, rounds=1, lr=0.05)
    return storage.encode(result.server), torch.get_num_threads()


def test_a_forked_process_waits_for_no_lost_threads():
    torch.set_num_threads(2)
    assert in_forked(run_on_large_data) == run_on_large_data()


def test_several_threads_in_a_forked_process_are_refused():
    def several():
        with pytest.raises(InputError) as error:
            play(0, **{"execution.threads": 2})
        return str(error.value)

    assert in_forked(several).startswith("execution.threads = 2 in a forked process, where OpenMP's threads are lost")


def test_a_forked_process_waits_for_no_lock_of_a_thread_that_it_has_not(alone, tmp_path):
    plugin = tmp_path / "forked_plugin.py"
    plugin.write_text("ALPHA = 1\n")
    held, done = threading.Event(), threading.Event()

    def hold():
        with plugins._importing, calls._counting, hold_process():
            held.set()
            done.wait(120)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert held.wait(60)
        assert in_forked(lambda: bits(play(0, plugin=str(plugin)))) == alone[0]
    finally:
        done.set()
        thread.join()


# ------------------------------------------------------------------------------- another thread draws, too


class Restless(nn.Module):
    """Seeds, draws, forks and restores the global generator while it is built."""

    def __init__(self, num_classes):
        super().__init__()
        self.first = nn.Parameter(torch.randn(3) + torch.rand(3) + torch.randint(5, (3,)) + torch.randperm(3))
        with torch.random.fork_rng():
            self.lost = nn.Parameter(torch.randn(3))
        self.again = nn.Parameter(torch.randn(3))
        before = torch.get_rng_state()
        torch.manual_seed(7)
        self.flat, self.fc = nn.Flatten(), nn.Linear(64, num_classes)
        torch.set_rng_state(before)
        self.last = nn.Parameter(nn.functional.dropout(torch.ones(50)))
        nn.init.orthogonal_(self.fc.weight)

    def forward(self, x):
        return self.fc(self.flat(x)) + 0 * (self.first + self.lost + self.again).sum() + 0 * self.last.sum()


def restless(shape, num_classes):
    return Restless(num_classes)


def plain(shape, num_classes):
    layers = {"flat": nn.Flatten(), "hidden": nn.Linear(64, 16), "fc": nn.Linear(16, num_classes)}
    with torch.no_grad():
        layers["fc"].bias.copy_(torch.randn(10) + torch.rand(10) + torch.randint(5, (10,)) + torch.randperm(10))
    return nn.Sequential(OrderedDict(layers))


OWN = ("plain", "restless")


def beside_a_thread_that_draws(work):
    stop = threading.Event()

    def draw():
        while not stop.is_set():
            torch.rand(1)
            time.sleep(0)

    thread, often = threading.Thread(target=draw), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        return work()
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(often)


@pytest.mark.parametrize("model", ["mlp", "convnet3", *(f"python(target='{__file__}:{n}',head='fc')" for n in OWN)])
def test_initial_weights_whatever_another_thread_draws(model):
    def make():
        return storage.encode({"all": build(model, (1, 8, 8), 10).state_dict()})

    def weights():
        with seeds.drawing_weights(5):
            return make()

    make()  # imports it
    with seeds.preserve_global_generator():
        torch.manual_seed(5)
        expected = make()
    assert weights() == expected  # as without any care
    if "restless" not in model:  # who seeds the global generator is on its own
        assert beside_a_thread_that_draws(lambda: {weights() for _ in range(5)}) == {expected}


def test_initial_weights_of_runs_auxiliary_networks_and_fresh_ones():
    auxiliary = unskew.Auxiliary(nn.Linear, 20, 30)
    net = Net(build("mlp", (1, 8, 8), 10), channels_last=False)
    params, buffers = net.trees()

    def drawn():
        first = unskew.run(clients=2, rounds=1, model="mlp", split="iid").rounds[0]["loss"]
        fresh = net.fresh({"model": params, "buffers": buffers}, 4)
        return first, storage.encode({"a": auxiliary.init(3), "fresh": fresh})

    alone = drawn()
    assert beside_a_thread_that_draws(lambda: {drawn() for _ in range(3)}) == {alone}


# --------------------------------------------------------------------------------- what a program set in torch


@pytest.mark.parametrize("executor", ["serial", "pool", "stacked"])
def test_the_programs_settings_of_torch_change_nothing(executor):
    options = {"model": "mlp", "clients": 4, "rounds": 2, "split": "iid", "executor": executor}
    alone = bits(unskew.run(**options))
    for setting in (torch.autocast("cpu"), torch.inference_mode(), torch.no_grad()):
        with setting:
            assert bits(unskew.run(**options)) == alone
            assert torch.is_autocast_enabled("cpu") is isinstance(setting, torch.autocast)
    torch.set_default_dtype(torch.float64)
    try:
        result = unskew.run(**options)
        assert bits(result) == alone and torch.get_default_dtype() == torch.float64
        assert {p.dtype for p in result.model().parameters()} == {torch.float32}
    finally:
        torch.set_default_dtype(torch.float32)


def test_comparisons_under_the_programs_settings(tmp_path):
    options = {"seeds": 1, "model": "mlp", "clients": 3, "rounds": 1, "split": "iid"}
    with torch.inference_mode(), torch.autocast("cpu"):
        ours = unskew.compare(["fedavg"], out=tmp_path / "a", **options)
    plain = unskew.compare(["fedavg"], out=tmp_path / "b", **options)
    assert ours[0].summary["accuracy"] == plain[0].summary["accuracy"]


# ------------------------------------------------------------------------------ a process forked in the middle of a run


@pytest.mark.usefixtures("own_folder")
@pytest.mark.parametrize("executor", ["serial", "pool"])
def test_a_forked_child_cannot_go_on_with_the_run(executor, capfd):
    options = {**SKEWED, "rounds": 3, "executor": executor}
    known, parent, forked = weights(unskew.run("scaffold", **options)), os.getpid(), []

    def watch(row):
        if row["round"] == 1 and not forked:
            forked.append(os.fork())

    code = 0
    try:
        found = unskew.run("scaffold", watch=watch, out="forked", **options)
    except SlotError as error:
        code = 7 if "this process was forked in round 1" in str(error) else 8
    finally:
        if os.getpid() != parent:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(forked[0], 0)[1]) == 7
    assert torch.equal(weights(found), known)
    assert [row["round"] for row in unskew.open("forked").rounds] == [0, 1, 2, 3]
