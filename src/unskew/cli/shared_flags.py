"""Flags that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DataDir = Annotated[Path | None, typer.Option(help="where the data files are; else UNSKEW_DATA, else the user's cache")]
CellsOn = Annotated[
    str | None,
    typer.Option(help="runs side by side on a Ray cluster: ray (this machine's cores) or ray=10.0.0.5:6379"),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        help="runs side by side, each in a process of its own with one thread; default: one for each core, 1 with "
        "--executor pool or ray"
    ),
]
Json = Annotated[bool, typer.Option("--json", help="print the result as one JSON object on standard output")]
NoPicture = Annotated[bool, typer.Option("--no-picture", help="leave no curves.png, which takes a second")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="no progress")]
