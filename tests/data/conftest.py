import pytest

from unskew.base.errors import InputError


@pytest.fixture(autouse=True)
def _private_cache(tmp_path_factory, monkeypatch, request):
    """No test sees the user's files or writes to the user's cache; only tests marked by name see UNSKEW_DATA."""
    monkeypatch.setenv("UNSKEW_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.delenv("UNSKEW_MIRROR", raising=False)
    if "real" not in request.module.__name__:
        monkeypatch.delenv("UNSKEW_DATA", raising=False)


@pytest.fixture
def refused():
    """Asserts that a call raises InputError with one line that holds all the words."""

    def check(call, *words):
        with pytest.raises(InputError) as caught:
            call()
        message = str(caught.value)
        assert "\n" not in message
        for word in words:
            assert str(word) in message, message

    return check
