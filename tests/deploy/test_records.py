"""Messages in Flower's records: the same bytes on both sides, the same tensors in the same record."""

import pytest
import torch

pytest.importorskip("flwr")
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from unskew.deploy.channel import Refused
from unskew.deploy.flower import records
from unskew.deploy.flower.records import from_records, to_records
from unskew.deploy.messages import Request, encode


def request(client):
    return encode(
        Request(run="a1b2c3d4", round=3, client=client, kind="train"), {"model": {"w": torch.arange(500.0)}}
    )  # fmt: skip


@pytest.mark.parametrize("data", [b"", b"short", b"\xff" * 40, bytes(range(256)) * 9, request(0)])
def test_bytes_come_back(monkeypatch, data):
    monkeypatch.setattr(records, "PIECE", 300)
    made = to_records(data)
    assert from_records(made) == data
    assert all(len(record["bytes"]) <= 300 for record in made.values())


def test_two_sites_share_the_record_of_their_tensors():
    one, other = to_records(request(0)), to_records(request(11))
    assert list(one) == list(other) == ["unskew-0", "unskew-1"]
    assert one["unskew-0"] != other["unskew-0"] and one["unskew-1"] == other["unskew-1"]


@pytest.mark.parametrize(
    "wrong",
    [
        {}, {"unskew-1": ConfigRecord({"bytes": b"a"})}, {"unskew-0": ConfigRecord({"bytes": "a"})},
        {"unskew-0": ConfigRecord({"text": b"a"})}, {"unskew-0": ArrayRecord()},
        {"unskew-0": ConfigRecord({"bytes": b"a"}), "more": ArrayRecord()},
    ],
)  # fmt: skip
def test_other_records_are_refused(wrong):
    with pytest.raises(Refused):
        from_records(RecordDict(wrong))
