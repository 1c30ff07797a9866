"""The two errors a user meets: bad input, and a client whose work failed."""

from __future__ import annotations


class InputError(Exception):
    """Bad input: one line that says what was expected, what came and what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class ClientError(Exception):
    """A client's work failed: says which client in which round, and keeps the traceback's text."""

    def __init__(self, client: int, round_: int, what: str, details: str = "") -> None:
        super().__init__(f"client {client} failed in round {round_}: {what}")
        self.client, self.round, self.details = client, round_, details


def one_line(error: BaseException) -> str:
    """The error's text on one line; its type where it has no text."""
    return " ".join(str(error).split()) or type(error).__name__
