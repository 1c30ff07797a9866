"""Errors travel between processes."""

import copy
import importlib
import pickle
import pkgutil

import pytest

import unskew
from unskew.base.errors import ClientError, DamagedRun, DeclarationError, InputError, SlotError
from unskew.core.checks.faults import Fault, Raised
from unskew.core.checks.returned import Detached, Wrong
from unskew.data.files.download import TransferError
from unskew.deploy.messages import Refused
from unskew.deploy.server import TooFewAnswers
from unskew.executors.stacked.lanes import NotStackable
from unskew.measures.base import Absent
from unskew.runs.checkpoint import _OtherRun
from unskew.runs.folder import ChangedOptions, EditedRun
from unskew.runs.side_by_side import Died

CLIENT = ClientError(3, 2, "ValueError: no luck", "Traceback …", method="fedavg", slot="loss", spoilt=True)
CLIENT.folder = "runs/x"
SLOT = SlotError("the server failed", method="a", slot="update", client=4, round=5, details="…")
MADE = [
    CLIENT, SLOT, InputError("a\nb"), DeclarationError("c"), Fault(None, "loss", "fails"), Wrong("w"), Absent("a"),
    NotStackable("n"), TransferError("t"), _OtherRun("o"), EditedRun("e"), DamagedRun("p"),
    ChangedOptions("c"), Raised("r"), Detached(None, "", "d"), Refused("r"), TooFewAnswers("t"),
    Died("d"),
]  # fmt: skip


@pytest.mark.parametrize("error", MADE, ids=lambda error: type(error).__name__)
def test_errors_can_be_pickled(error):
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is type(error) and str(again) == str(error) and vars(again) == vars(error)


def test_none_is_forgotten():
    for module in pkgutil.walk_packages(unskew.__path__, "unskew."):
        if not module.name.endswith("__main__"):
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as error:  # an extra that is not installed here
                assert (error.name or "").partition(".")[0] in ("flwr", "ray", "cryptography", "httpx", "uvicorn"), (
                    error
                )
    known, found = {type(error) for error in MADE}, set()
    waiting = [Exception]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__() if kind is not type else []
        found |= {kind} if kind.__module__.startswith("unskew.") else set()
    # a request that a deployment's door refuses is answered where it was raised
    assert {kind.__name__ for kind in found - known} <= {"Portable", "_Refused"}
