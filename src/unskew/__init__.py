"""unskew: federated learning when clients' data are skewed.

import unskew
result = unskew.run("fedprox(mu=0.1)", data="digits", split="dirichlet:0.1", clients=20, rounds=20)
print(result.accuracy)

Everything that users and authors of plugins need is here, and is imported when it is first asked for: `import unskew`
itself takes no time.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from unskew.base.version import __version__

if TYPE_CHECKING:
    from unskew import registries
    from unskew.base import progress, seeds, tree
    from unskew.base.batch import Batch, Output, cross_entropy
    from unskew.base.errors import ClientError, InputError, SlotError
    from unskew.base.naming import helper
    from unskew.base.registry import param
    from unskew.base.tree import Groups, Tree
    from unskew.core import optimisers, reducers
    from unskew.core.auxiliary import Auxiliary
    from unskew.core.context import ClientContext, Outcome, ServerContext
    from unskew.core.local_loop import sgd
    from unskew.core.method import Method
    from unskew.core.observer import Observer
    from unskew.core.optimisers import Optimiser
    from unskew.core.schedule import Schedule
    from unskew.core.term import Term
    from unskew.core.wrapper import Wrapper
    from unskew.data.dataset import Dataset, Samples
    from unskew.data.partition.splits import Split
    from unskew.data.sources import load
    from unskew.data.sources.base import About, Source
    from unskew.data.transforms import Draws, Transform, normalise
    from unskew.measures.base import Measure
    from unskew.models.base import Architecture, Model
    from unskew.models.user_module import split_head
    from unskew.runs.api import compare, extend, open, resume, run, tune
    from unskew.wire.base import Processor


_PLACES = {
    # running
    "run": "runs.api", "compare": "runs.api", "resume": "runs.api", "extend": "runs.api", "open": "runs.api",
    "load": "data.sources", "Dataset": "data.dataset", "Samples": "data.dataset", "Model": "models.base",
    "split_head": "models.user_module", "tune": "runs.api",
    "InputError": "base.errors", "ClientError": "base.errors", "SlotError": "base.errors",
    # extending
    "Method": "core.method", "Wrapper": "core.wrapper", "Term": "core.term", "Measure": "measures.base",
    "Processor": "wire.base",
    "Source": "data.sources.base", "About": "data.sources.base", "Split": "data.partition.splits",
    "Transform": "data.transforms", "Draws": "data.transforms", "normalise": "data.transforms",
    "Architecture": "models.base", "param": "base.registry", "helper": "base.naming",
    "ClientContext": "core.context", "ServerContext": "core.context",
    "Outcome": "core.context", "Observer": "core.observer", "Batch": "base.batch", "Output": "base.batch",
    "cross_entropy": "base.batch", "Tree": "base.tree", "Groups": "base.tree", "sgd": "core.local_loop",
    "Auxiliary": "core.auxiliary", "Optimiser": "core.optimisers", "Schedule": "core.schedule",
}  # fmt: skip
_MODULES = {"registries": "registries", "tree": "base.tree", "seeds": "base.seeds", "progress": "base.progress",
            "reducers": "core.reducers", "optimisers": "core.optimisers"}  # fmt: skip

__all__ = [
    "About", "Architecture", "Auxiliary", "Batch", "ClientContext", "ClientError", "Dataset", "Draws", "Groups",
    "InputError", "Measure", "Method", "Model", "Observer", "Optimiser", "Outcome", "Output", "Processor", "Samples",
    "Schedule", "ServerContext", "SlotError", "Source", "Split", "Term", "Transform", "Tree", "Wrapper", "__version__",
    "compare", "cross_entropy", "extend", "helper", "load", "normalise", "open", "optimisers", "param", "progress",
    "reducers", "registries", "resume", "run", "seeds", "sgd", "split_head", "tree", "tune",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Imports what is asked for: torch alone takes two seconds."""
    if name in _MODULES:
        found: Any = import_module(f"unskew.{_MODULES[name]}")
    elif name in _PLACES:
        found = getattr(import_module(f"unskew.{_PLACES[name]}"), name)
    else:
        raise AttributeError(f"module 'unskew' has no attribute '{name}'")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
