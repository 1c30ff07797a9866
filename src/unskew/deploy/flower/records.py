"""A message's bytes in Flower's records: one array of bytes, of which Flower reads nothing."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from unskew.deploy.channel import Refused

NAME = "unskew"


def to_records(data: bytes) -> RecordDict:
    """The records that carry these bytes."""
    array = Array(dtype="uint8", shape=(len(data),), stype="unskew", data=data)
    return RecordDict({NAME: ArrayRecord({NAME: array})})


def from_records(records: RecordDict) -> bytes:
    """The bytes that records carry."""
    try:
        array = records.array_records[NAME][NAME]
    except KeyError:
        raise Refused("no message of unskew: it has no bytes") from None
    if array.stype != "unskew" or not isinstance(array.data, bytes):
        raise Refused("no message of unskew: it holds something else")
    return array.data


def introduce(site: str) -> RecordDict:
    """What a node says when it is asked who it is."""
    return RecordDict({NAME: ConfigRecord({"site": site})})


def read_introduction(records: RecordDict) -> str:
    """Who a node says it is."""
    try:
        return str(records.config_records[NAME]["site"])[:200]
    except KeyError:
        raise Refused("it does not say which site it is") from None
