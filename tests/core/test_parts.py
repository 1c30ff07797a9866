"""A drawn part of a client's data: the same samples on every executor, and positions within the whole."""

import pytest
import torch

from awkward import DATA, config
from support import STACKED_TOLERANCE, gap, initial_model
from unskew.base.errors import ClientError
from unskew.core import local_loop
from unskew.core.jobs import Job
from unskew.core.method import Method, methods
from unskew.core.visit import open_visit
from unskew.data.batches import LocalData
from unskew.data.stacked_batches import StackedData
from unskew.executors.stacked.context import LaneData, StackedContext
from unskew.executors.stacked.lanes import LaneDiagnostics, Lanes
from unskew.runs import building, engine

CLIENTS = tuple(range(5))


@methods.register("test_half")
class Half(Method):
    """Trains on a drawn half of the client's data, then a little on all of them (as FedALA's start does)."""

    def train(self, c, params):
        c = c.with_seen("received")
        part = c.draw_part(0.5, "half")
        assert part.client is c.client and part.longest <= c.longest
        return local_loop.sgd(c, local_loop.sgd(part, params, self.gradient, epochs=2, purpose="half"), self.gradient)

    def loss(self, c, params, batch):
        taught = c.teacher(batch).logits.softmax(1)
        near = batch.mean((c.forward(params, batch.x).logits.softmax(1) - taught).square().sum(1))
        return super().loss(c, params, batch) + near

    def upload(self, c, params):
        part = c.draw_part(0.5, "half")
        reply = super().upload(c, params)
        share = part.counts.float() / part.counts.sum().clamp(min=1) + part.num_samples
        return {**reply, "delta": {**reply["delta"], "share": share}}

    def update(self, s, server, merged):
        return {**super().update(s, server, merged), "share": {"mean": merged["delta"]["share"]}}


@pytest.fixture(autouse=True, scope="module")
def only_here():
    yield
    del methods._classes["test_half"]


def prepare(**options):
    return building.prepare(config("fedavg", **options), dataset=DATA).task


def open_one(task, client, data=None):
    message = task.method.download(task.server_context(1), task.method.init(task.server_context(0)), client)
    return task.visit(Job("train", 1, client, message), task.federation.train(client) if data is None else data)


def empty(task):
    return LocalData(task.federation.dataset.train, torch.empty(0, dtype=torch.int64), task.federation._training)


def see(batches, lanes=None):
    """Every batch's real samples by client: inputs, labels, positions."""
    found = {}
    for batch in batches:
        if lanes is None:
            found.setdefault(0, []).append((batch.x, batch.y, batch.positions))
            continue
        x, y, at = (lanes.unwrap(value) for value in batch[:3])
        mask = torch.ones_like(y, dtype=torch.bool) if batch.mask is None else lanes.unwrap(batch.mask)
        for client, real in enumerate(mask):
            if real.any():
                found.setdefault(client, []).append((x[client][real], y[client][real], at[client][real]))
    return found


@pytest.mark.parametrize("augment", ["none", "flip"])
def test_serial_and_stacked_take_the_same_samples(augment):
    task = prepare(augment=augment)
    own = [*(task.federation.train(client) for client in CLIENTS), empty(task)]
    clients = (*CLIENTS, 5)
    alone = []
    for client, data in zip(clients, own, strict=True):
        part = open_one(task, client, data).draw_part(0.4, "some")
        batches = see(part.batches(purpose="some")).get(0, []), see(part.passes(4)).get(0, [])
        alone.append((batches, int(part.num_samples), part.counts))
    lanes = Lanes(len(clients), torch.device("cpu"))
    message = task.method.init(task.server_context(0))
    with lanes:
        data = LaneData(StackedData(own), lanes)
        more = {"diagnostics": LaneDiagnostics(lanes), "clients": clients, "lanes": lanes}
        c = open_visit(task, Job("train", 1, 0, message), data, lanes, StackedContext, **more)
        part = c.draw_part(0.4, "some")
        # as `sgd` does: a slot's own loop over uneven batches is refused
        batches = see(lanes._hold_clients(part.batches(purpose="some")), lanes)
        passes = see(part.passes(4), lanes)
        sizes, counts = lanes.unwrap(part.num_samples), lanes.unwrap(part.counts)
    for client, ((wanted, wanted_passes), size, count) in enumerate(alone):
        assert int(sizes[client]) == size and torch.equal(counts[client], count)
        for found, expected in ((batches, wanted), (passes, wanted_passes)):
            assert len(found.get(client, [])) == len(expected)
            for mine, theirs in zip(found.get(client, []), expected, strict=True):
                assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
    assert [size for _, size, _ in alone] == [max(1, int(0.4 * len(data))) for data in own[:-1]] + [0]


def test_positions_are_those_within_the_whole():
    task = prepare()
    c = open_one(task, 0)
    whole = torch.cat([batch.x for batch in c.passes()])
    part = c.draw_part(0.5, "some")
    inner = part.draw_part(0.5, "again")
    assert len(inner.data) == int(0.5 * int(0.5 * len(c.data)))
    for batch in (*part.batches(), *part.passes(), *inner.batches(), *inner.passes()):
        assert torch.equal(whole[batch.positions], batch.x)
    seen = torch.cat([batch.positions for batch in part.passes()])
    assert len(seen.unique()) == len(seen) == int(part.num_samples) and torch.equal(part.counts.sum(), part.num_samples)
    assert not torch.equal(seen, torch.cat([batch.positions for batch in c.draw_part(0.5, "other").passes()]))
    assert torch.equal(seen, torch.cat([batch.positions for batch in c.draw_part(0.5, "some").passes()]))


def test_a_part_may_have_a_limit():
    c = open_one(prepare(), 0)
    part, same = c.draw_part(1.0, "some", at_most=3), c.draw_part(0.5, "some", at_most=10**6)
    assert int(part.num_samples) == 3 == sum(len(batch.y) for batch in part.passes())
    plain = c.draw_part(0.5, "some")
    assert torch.equal(same.data.positions, plain.data.positions) and len(c.draw_part(0.5, "some", 1).data) == 1


def test_a_part_looks_up_what_the_whole_was_taught():
    c = open_one(prepare(model="mlp"), 0)
    for part in (c.with_seen("received").draw_part(0.5, "some"), c.draw_part(0.5, "some").with_seen("received")):
        for batch in part.batches():
            torch.testing.assert_close(part.teacher(batch).logits, c.teacher(batch).logits)


def test_an_empty_client_and_a_senseless_share():
    task = prepare()
    part = open_one(task, 0, empty(task)).draw_part(0.5, "some")
    assert not list(part.batches()) and not list(part.passes()) and int(part.num_samples) == 0
    for share in (0.0, 1.1):
        with pytest.raises(ValueError, match="above 0 and up to 1"):
            open_one(task, 0).draw_part(share, "some")
    assert torch.equal(open_one(task, 0).draw_part(1.0, "some").data.index, task.federation.train(0).index)


def play(executor, **options):
    execution = {"executor": executor, "memory_format": "contiguous", **options.pop("execution", {})}
    return engine.run(config("test_half", execution=execution, **options), dataset=DATA)


@pytest.mark.parametrize("options", [{}, {"model": "mlp"}, {"augment": "flip"}], ids=["batchnorm", "mlp", "augmented"])
def test_a_method_on_a_part_gives_the_same_on_every_executor(options, caplog):
    serial, pool = play("serial", **options), play("pool", execution={"workers": 2}, **options)
    stacked = play("stacked", execution={"chunk": 3}, **options)
    assert "one by one" not in caplog.text
    for group, tree in serial.server.items():
        assert all(torch.equal(value, pool.server[group][name]) for name, value in tree.items())
    assert gap(stacked, serial, initial_model(serial.run, DATA)) < STACKED_TOLERANCE
    torch.testing.assert_close(stacked.server["share"], serial.server["share"])


def test_a_fault_inside_reaches_the_user(monkeypatch):
    monkeypatch.setattr(Half, "train", lambda self, c, params: c.draw_part(2.0, "half"))
    with pytest.raises(ClientError, match="above 0 and up to 1"):
        play("stacked")
