"""The command line: `unskew run`, `compare`, `split`, `resume`, and lists of what there is."""

from unskew.cli.app import main

__all__ = ["main"]
