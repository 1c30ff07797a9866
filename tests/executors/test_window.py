"""The order of work: longest first, replies in order, never more than the window holds."""

import heapq

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unskew.core.jobs import Job, Reply
from unskew.executors.window import Window


def jobs(sizes):
    return [Job("train", 1, client, {}, size=size) for client, size in enumerate(sizes)]


def played(sizes, workers, limit):
    """Plays a window against imagined workers whose jobs last as long as they are large: order, replies, time."""
    window, running, handed_out, replies, now, most = Window(jobs(sizes), limit), [], [], [], 0, 0
    while not window.finished:
        while len(running) < workers and (picked := window.pick()) is not None:
            handed_out.append(picked[0])
            heapq.heappush(running, (now + picked[1].size, *picked[:1], picked[1]))
        now, index, job = heapq.heappop(running)
        window.take(index, job, Reply(job.client, {}))
        most = max(most, len(window._replies))
        while window.ready:
            replies.append(window.pop_due().client)
    return handed_out, replies, now, most


def test_longest_first_and_equal_ones_in_order():
    assert played([3, 9, 1, 9, 5], 2, 16)[:2] == ([1, 3, 4, 0, 2], [0, 1, 2, 3, 4])
    assert played([7] * 40, 2, 16)[0] == list(range(40))


def test_a_long_client_at_the_end_is_not_left_for_the_end():
    assert played([1] * 9 + [9], 2, 16)[2] == 9
    assert played([1] * 60 + [9], 2, 16)[2] <= 36  # 34.5 is what two workers need at least


def test_a_short_early_client_does_not_hold_the_window_up():
    sizes = ([1] + [4] * 9) * 20
    assert played(sizes, 2, 16)[2] <= 1.01 * sum(sizes) / 2 + 4


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(1, 5), st.integers(1, 20))
def test_every_job_once_replies_in_order_within_the_limit(sizes, workers, limit):
    handed_out, replies, _, most = played(sizes, workers, limit)
    assert sorted(handed_out) == replies == list(range(len(sizes)))
    assert most <= limit


def test_not_more_jobs_are_pulled_than_the_window_holds():
    pulled = []

    def endless():
        for client in range(1000):
            pulled.append(client)
            yield Job("train", 1, client, {}, size=client)

    window = Window(endless(), 8)
    while window.pick() is not None:
        pass
    assert len(pulled) == 9  # eight, and the one that tells whether more are to come


def test_shared_is_what_several_jobs_of_the_window_are_sent():
    common, own = torch.zeros(1), [torch.zeros(1) for _ in range(3)]
    window = Window((Job("train", 1, k, {"m": {"w": common, "again": common, "own": own[k]}}) for k in range(3)), 16)
    picked = [window.pick() for _ in range(3)]
    assert window.is_shared(common) and not any(map(window.is_shared, own))
    for index, job in picked[:2]:
        window.take(index, job, Reply(index, {}))
    assert not window.is_shared(common)  # one job is left that needs it


@pytest.mark.parametrize("limit", [1, 16])
def test_no_jobs_at_all(limit):
    assert Window([], limit).finished
