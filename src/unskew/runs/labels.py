"""Who holds what, in a run's folder: labels.json, with the samples that clients hold of each class.

split.json names samples, whose labels are elsewhere; this file lets a report draw the split without the data.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from unskew.base import seeds
from unskew.base.errors import let_pass
from unskew.base.json_text import to_json
from unskew.data.federation import Federation
from unskew.data.partition.skew import label_counts
from unskew.runs.folder import RunFolder

NAME = "labels.json"
MOST_CLIENTS = 200
"""Of more clients, a fixed random choice is written."""


@dataclass(frozen=True)
class Labels:
    """Sample counts of clients by class."""

    classes: list[str]
    clients: list[int]
    """Those that were counted, in rising order."""
    names: list[str]
    """What the data call them; empty if they have no names."""
    of: int
    """How many clients there are."""
    counts: list[list[int]]
    """A row for each counted client, a column for each class."""


def write_labels(folder: RunFolder, federation: Federation) -> None:
    """Writes the counts of all clients, or of a choice of very many."""
    data, partition = federation.dataset, federation.partition
    many = len(partition) > MOST_CLIENTS
    chosen = sorted(seeds.sample_cohort(0, 0, len(partition), MOST_CLIENTS)) if many else list(range(len(partition)))
    counts = label_counts(partition, data.train.y.cpu().numpy(), data.num_classes, np.array(chosen, dtype=np.int64))
    named = len(data.group_names) == len(partition)
    names = [data.group_names[client] for client in chosen] if named else []
    about = {"classes": list(data.classes), "clients": chosen, "names": names, "of": len(partition)}
    folder.write_text(NAME, to_json({**about, "counts": counts.tolist()}) + "\n")


def read_labels(folder: Path) -> Labels | None:
    """What a run wrote; None if it is of an older version, or the file is damaged."""
    try:
        found = json.loads((folder / NAME).read_text(encoding="utf-8"))
        read = Labels(**{key: found[key] for key in Labels.__dataclass_fields__})
        whole = len(read.counts) == len(read.clients) and all(len(row) == len(read.classes) for row in read.counts)
        named = all(isinstance(name, str) for name in (*read.classes, *read.names))
        counted = all(isinstance(n, int) for row in (read.clients, [read.of], *read.counts) for n in row)
    except (OSError, ValueError, TypeError, KeyError) as error:
        let_pass(error)
        return None
    return read if read.clients and whole and named and counted else None
