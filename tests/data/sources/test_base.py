"""Every source: what it says of itself, and wrong names."""

import pytest

from unskew.data.files.finder import Finder
from unskew.data.sources import load
from unskew.data.sources.base import sources


@pytest.mark.parametrize("name", list(sources))
def test_every_source_describes_itself(name):
    source = sources.get(name)
    assert source.summary and (source.about.counts or not source.files)
    for needed in source.files:
        assert needed.url == "" or needed.url.startswith("http")
        assert needed.checksum is None or len(needed.checksum) in (len("md5:") + 32, len("sha256:") + 64)
    assert not source.files or Finder(offline=True).locate(name, source.files[0], source.folders) is None


def test_unknown_names_and_options(refused):
    refused(lambda: load("mnits"), "mnist")
    refused(lambda: load("mnist(size=3)"), "size")
