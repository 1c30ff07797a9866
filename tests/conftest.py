"""For all tests: one thread, and choices made by measuring are kept for the session, not in the user's cache."""

import itertools
import os

import pytest
import torch

from unskew.base.registry import Registry
from unskew.base.user_code import calls

NUMBERS = itertools.count()


@pytest.fixture(autouse=True, scope="session")
def calibration_cache(tmp_path_factory):
    before = os.environ.get("UNSKEW_CACHE")
    os.environ["UNSKEW_CACHE"] = str(tmp_path_factory.mktemp("unskew-cache"))
    yield
    os.environ.pop("UNSKEW_CACHE")
    if before is not None:
        os.environ["UNSKEW_CACHE"] = before


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """As in a run: tests that play parts of a round by hand compare them with runs bit for bit."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def own_names():
    """Forgets afterwards what the test registers."""
    before = [(registry, dict(registry._classes)) for registry in Registry.every]
    yield
    for registry, classes in before:
        registry._classes = classes


@pytest.fixture
def own_folder(tmp_path, monkeypatch):
    """The current folder is one of the test's own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def name(own_folder, own_names):
    """A new name for a plugin whose file the test writes, as a process knows each plugin once; forgotten afterwards."""
    return f"plugin_{next(NUMBERS)}"


@pytest.fixture(autouse=True, scope="module")
def no_run_used_the_modules_before():
    """Every module of tests begins like a program of its own: calls need not look at those of the tests before it."""
    for known in calls._values.values():
        known.used = False
