"""`unskew report`: runs and comparisons as one page that stands alone, from their folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unskew.base.errors import InputError
from unskew.base.text import count_of
from unskew.cli.output import console, note
from unskew.cli.outputs import check_out
from unskew.report.facts import make_facts
from unskew.report.files import draw_whole
from unskew.report.page import render_page
from unskew.report.reading import gather


def report(
    paths: Annotated[
        list[Path], typer.Argument(metavar="RUN|COMPARISON…", help="folders of runs or comparisons, or that hold some")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="the page, an .html file")] = Path("report.html"),
) -> None:
    """Writes runs and comparisons as one interactive page, from their folders alone; finished or not."""
    if out.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"--out expects the name of an .html file, got '{out}'")
    check_out(out)
    gathered = gather(paths)
    for problem in gathered.problems:
        note(f"left out: {problem}")
    facts = make_facts(gathered)
    page = render_page(facts)
    draw_whole(out, lambda part: part.write_text(page, encoding="utf-8"))
    settings = f" in {len(facts.settings)} settings" if len(facts.settings) > 1 else ""
    for line in facts.settings[0].headline if not settings else ():
        console.print(line, soft_wrap=True)
    console.print(f"wrote {out}: {count_of(len(gathered.runs), 'run')}{settings}", soft_wrap=True)
