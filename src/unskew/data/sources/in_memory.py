"""Data that a Python program hands over as a `Dataset`."""

from __future__ import annotations

from unskew.base.errors import InputError
from unskew.base.registry import param
from unskew.data.dataset import Dataset
from unskew.data.files.finder import Finder
from unskew.data.sources.base import Source, sources


@sources.register("given")
class GivenDataset(Source):
    """A `Dataset` that a Python program handed over; the record keeps its name only."""

    kind: str = param(default="", doc="the data set's name, for the record")
    fingerprint: str = param(default="", doc="a hash of the data, so that other data are another run")

    def load(self, find: Finder) -> Dataset:
        """There is nothing to load: the program must hand the data over again."""
        raise InputError(
            f"this run's data ({self.kind}) were handed over by a Python program; hand them over again from Python, "
            "with data=... of unskew.resume or unskew.open"
        )
