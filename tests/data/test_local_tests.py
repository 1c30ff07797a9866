import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unskew.base.errors import InputError
from unskew.data.local_tests import choose_proportional, hold_out

TEST_LABELS = np.tile(np.arange(4), 300)


def test_shares_follow_the_client_and_are_limited_by_what_there_is():
    chosen = choose_proportional(TEST_LABELS, [50, 0, 30, 20], seed=1, client=0)
    assert np.bincount(TEST_LABELS[chosen], minlength=4).tolist() == [300, 0, 300, 200]
    assert len(set(chosen.tolist())) == len(chosen)


@settings(deadline=None)
@given(counts=st.tuples(*[st.integers(0, 500)] * 4), limit=st.integers(0, 1500), client=st.integers(0, 10**6))
def test_amounts_per_class(counts, limit, client):
    chosen = choose_proportional(TEST_LABELS, counts, seed=7, client=client, limit=limit)
    expected = [min(300, int(limit * (count / max(1, sum(counts))))) for count in counts]
    assert np.bincount(TEST_LABELS[chosen], minlength=4).tolist() == expected


def test_each_client_has_its_own_choice_whatever_was_asked_before():
    def ask(client, seed=1):
        return choose_proportional(TEST_LABELS, [1, 1, 1, 1], seed, client, limit=100).tolist()

    forward = [ask(client) for client in range(5)]
    assert [ask(client) for client in reversed(range(5))] == forward[::-1]
    assert len({tuple(choice) for choice in forward}) == 5
    assert ask(0, seed=2) != forward[0]


@settings(deadline=None)
@given(size=st.integers(1, 200), share=st.floats(0, 0.99), seed=st.integers(0, 2**32), client=st.integers(0, 10**6))
def test_holdout_splits_and_leaves_a_training_sample(size, share, seed, client):
    own = np.arange(100, 100 + size)
    training, test = hold_out(own, seed, client, share)
    assert sorted([*training, *test]) == own.tolist()
    assert len(training) >= 1
    assert abs(len(test) - share * size) <= 1
    again = hold_out(own, seed, client, share)
    assert (again[0].tolist(), again[1].tolist()) == (training.tolist(), test.tolist())


@pytest.mark.parametrize(("size", "expected"), [(0, (0, 0)), (1, (1, 0)), (2, (1, 1)), (40, (30, 10)), (41, (30, 11))])
def test_holdout_of_a_quarter(size, expected):
    training, test = hold_out(np.arange(size), seed=0, client=0)
    assert (len(training), len(test)) == expected


def test_holdout_differs_between_clients_and_leaves_its_input_alone():
    own = np.arange(50)
    assert hold_out(own, 0, 1)[1].tolist() != hold_out(own, 0, 2)[1].tolist()
    assert own.tolist() == list(range(50))


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_holdout_share_must_leave_something(share):
    with pytest.raises(InputError, match="held out must be in"):
        hold_out(np.arange(5), 0, 0, share)


def test_nothing_is_held_out_of_nothing():
    nothing = np.empty(0, np.int64)
    nothing.flags.writeable = False  # as partitions give it
    assert [len(part) for part in hold_out(nothing, seed=0, client=0)] == [0, 0]
