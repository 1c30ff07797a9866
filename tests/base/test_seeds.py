"""Random streams."""

import torch

from unskew.base import seeds


def test_streams_are_named_and_independent():
    numbers = {
        seeds.derive(*args) for args in [(0, "a"), (1, "a"), (0, "b"), (0, "a", 1), (0, "a", 0, 1), (0, "a", 1, 1)]
    }
    assert len(numbers) == 6
    assert seeds.derive(0, "a", 2, 3) == seeds.derive(0, "a", 2, 3) < 2**63
    draw = [torch.rand(3, generator=seeds.generator(0, "a")) for _ in range(2)]
    assert torch.equal(*draw)


def test_streams_are_the_same_in_every_version():
    # a change here changes every published number
    assert seeds.derive(0, "cohort", 1) == 6404181247760917545
    assert seeds.sample_cohort(0, 1, 10, 3) == [8, 4, 2]


def test_cohorts():
    for clients, size in [(10, 10), (10, 3), (1000, 7), (100_000, 10)]:
        drawn = seeds.sample_cohort(5, 2, clients, size)
        assert len(set(drawn)) == size and min(drawn) >= 0 and max(drawn) < clients
        assert drawn == seeds.sample_cohort(5, 2, clients, size) != seeds.sample_cohort(5, 3, clients, size)


def test_every_client_is_drawn_about_equally_often():
    counts = torch.zeros(50)
    for round_ in range(2000):
        counts[seeds.sample_cohort(1, round_, 50, 2)] += 1
    assert counts.min() > 45 and counts.max() < 120  # 80 expected


def test_the_global_generator_is_left_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    with seeds.preserve_global_generator():
        seeds.seed_layers(0, "x")
        torch.rand(3)
    assert torch.equal(before, torch.get_rng_state())
