"""For all tests: choices made by measuring are kept for the session, not in the user's cache."""

import os

import pytest


@pytest.fixture(autouse=True, scope="session")
def calibration_cache(tmp_path_factory):
    before = os.environ.get("UNSKEW_CACHE")
    os.environ["UNSKEW_CACHE"] = str(tmp_path_factory.mktemp("unskew-cache"))
    yield
    os.environ.pop("UNSKEW_CACHE")
    if before is not None:
        os.environ["UNSKEW_CACHE"] = before
