"""A message's bytes in Flower's records, of which Flower reads nothing.

Flower keeps and sends each record under the digest of its contents. So the tensors of a request, which are the same for
all sites in most methods, are records of their own: they are brought to Flower's server once, whoever gets them.
Records of settings are taken rather than arrays, which are four objects each, and each object is a request on each leg.
"""

from __future__ import annotations

from flwr.app import ConfigRecord, RecordDict

from unskew.deploy.channel import Refused

NAME = "unskew"
PIECE = 1 << 24
"""Bytes of a record at most: each is a request of its own, and in memory as a whole."""


def to_records(data: bytes) -> RecordDict:
    """The records that carry these bytes: the head of a message, then its tensors in pieces."""
    head = min(8 + int.from_bytes(data[:8], "little"), len(data), PIECE)
    starts = [0, *range(head, len(data), PIECE)]
    pieces = [data[start:end] for start, end in zip(starts, [*starts[1:], len(data)], strict=True)]
    return RecordDict({f"{NAME}-{number}": ConfigRecord({"bytes": piece}) for number, piece in enumerate(pieces)})


def from_records(records: RecordDict) -> bytes:
    """The bytes that records carry."""
    found = records.config_records
    try:
        pieces = [found[f"{NAME}-{number}"]["bytes"] for number in range(len(found))]
    except KeyError:
        raise Refused("no message of unskew: it has no bytes") from None
    if not pieces or len(found) != len(records):
        raise Refused("no message of unskew: it has no bytes")
    if not all(isinstance(piece, bytes) for piece in pieces):
        raise Refused("no message of unskew: it holds something else")
    return b"".join(pieces)  # type: ignore[arg-type]


def introduce(site: str) -> RecordDict:
    """What a node says when it is asked who it is."""
    return RecordDict({NAME: ConfigRecord({"site": site})})


def read_introduction(records: RecordDict) -> str:
    """Who a node says it is."""
    try:
        return str(records.config_records[NAME]["site"])[:200]
    except KeyError:
        raise Refused("it does not say which site it is") from None
