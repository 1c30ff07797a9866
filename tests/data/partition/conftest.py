import pytest

from unskew.data.sources import load


@pytest.fixture(scope="module")
def digits():
    return load("digits")
