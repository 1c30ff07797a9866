"""Stragglers: a fixed part of the clients that is often offline, the same for every method."""

import json

import pytest

from awkward import play


def cohorts(spec="fedavg", **options):
    return [row["clients"] for row in play(spec, rounds=6, evaluation={"every": 6}, **options).rounds[1:]]


def test_off_by_default_whatever_their_probability():
    assert cohorts(sample=0.6) == cohorts(sample=0.6, stragglers=0.0, straggler_online=0.1)
    plain, named = play("fedavg"), play("fedavg", stragglers=0.0, straggler_online=0.1)
    assert plain.run.hash == named.run.hash != play("fedavg", stragglers=0.4).run.hash


def test_the_same_clients_straggle_in_every_round(tmp_path):
    play("fedavg", tmp_path / "run", rounds=6, stragglers=0.4, straggler_online=0.5, dropout=0.3)
    lines = (tmp_path / "run/clients.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if "used" in row]
    slow = {row["client"] for row in rows if row["straggler"]}
    assert len(slow) == 2 and not slow & {row["client"] for row in rows if not row["straggler"]}
    seen = [row["client"] for row in rows]
    assert all(0 < seen.count(client) < 6 for client in slow) and seen.count(min({0, 1, 2} - slow)) == 6


def test_they_depend_on_the_seed_alone():
    options = {"stragglers": 0.4, "straggler_online": 0.5}
    assert cohorts("fedavg", **options) == cohorts("fedas", **options) != cohorts("fedavg", seed=4, **options)


def test_the_ends_of_the_scale():
    assert cohorts(sample=0.6, stragglers=1.0, straggler_online=1.0) == cohorts(sample=0.6)
    assert {len(cohort) for cohort in cohorts(stragglers=0.4, straggler_online=0.0)} == {3}
    assert {len(cohort) for cohort in cohorts(stragglers=1.0, straggler_online=0.0)} == {1}  # a round has a client


@pytest.mark.parametrize("executor", ["pool", "stacked"])
def test_on_other_executors(executor):
    options = {"stragglers": 0.6, "straggler_online": 0.3}
    assert cohorts("fedas", execution={"executor": executor, "workers": 2}, **options) == cohorts("fedas", **options)
