"""`import unskew` gives everything that users and authors of plugins need."""

import pytest

import unskew


def test_it_gives_everything_it_names():
    assert set(unskew.__all__) <= set(dir(unskew))
    for name in unskew.__all__:
        assert getattr(unskew, name) is not None


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'runn'"):
        _ = unskew.runn
