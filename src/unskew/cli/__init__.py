"""The command line: `unskew run`, `compare`, `split`, `resume`, and lists of what there is."""

from __future__ import annotations

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> None:
    """The command's entry; handles signals before anything else is imported."""
    from unskew.cli import signals, streams

    if arguments is None:
        streams.open_closed()
    streams.check_current_folder()  # torch's libraries would end the process without it
    with signals.handled(for_good=arguments is None):  # arguments: a caller's process, not ours
        from unskew.cli.app import main as call

        call(arguments)
