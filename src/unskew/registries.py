"""The registries: by them, what a plugin adds gets its name (`@registries.methods.register("mine")`)."""

from unskew.core.division import divisions
from unskew.core.method import methods
from unskew.core.optimisers import optimisers
from unskew.core.schedule import schedules
from unskew.core.term import terms
from unskew.data.partition.splits import splits
from unskew.data.sources.base import sources
from unskew.data.transforms import transforms
from unskew.measures.base import measures
from unskew.models.base import architectures
from unskew.runs.tracking.base import trackers
from unskew.wire.base import processors

__all__ = ["architectures", "divisions", "measures", "methods", "optimisers", "processors", "schedules", "sources",
           "splits", "terms", "trackers", "transforms"]  # fmt: skip
