"""Fisher traces of clients that are not in a round."""

import contextlib
import shutil

import unskew

STRAGGLING = {"clients": 6, "rounds": 4, "steps": 2, "stragglers": 0.5, "straggler_online": 0.0, "sample": 1.0}


def traces(result):
    return [row["measures"]["fisher_traces"] for row in result.rounds]


def test_offline_clients_keep_their_first_trace():
    result = unskew.run("fedavg", measure="fisher(absent=true)", **STRAGGLING)
    found = traces(result)
    seen = {client for row in result.rounds for client in row.get("clients", [])}
    assert len(seen) == 3 and all(len(own) == 6 for own in found)
    for client in range(6):
        values = [own[client] for own in found]
        assert (len(set(values)) == 1) == (client not in seen)
    plain = unskew.run("fedavg", measure="fisher", **STRAGGLING)
    assert [row["measures"]["fisher_trace"] for row in plain.rounds[1:]] == [
        row["measures"]["fisher_trace"] for row in result.rounds[1:]
    ]


def test_a_client_of_the_round_has_the_trace_of_its_row():
    seen = []
    result = unskew.run(
        "fedas", measure="fisher(absent=true)", clients=4, rounds=2, steps=1, sample=0.5, watch=seen.append
    )
    last = result.rounds[-1]
    mean = sum(last["measures"]["fisher_traces"][client] for client in last["clients"]) / len(last["clients"])
    assert abs(mean - last["measures"]["fisher_trace"]) < 1e-6 * mean


def test_traces_go_on_after_a_resume(tmp_path):
    whole = unskew.run("fedavg", measure="fisher(absent=true)", out=tmp_path / "whole", **STRAGGLING)

    def stop(row):
        if row["round"] == 2:
            raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        unskew.run(
            "fedavg", measure="fisher(absent=true)", out=tmp_path / "cut", watch=stop, checkpoint_every=1, **STRAGGLING
        )
    assert traces(unskew.resume(tmp_path / "cut")) == traces(whole)
    shutil.rmtree(tmp_path / "cut")
