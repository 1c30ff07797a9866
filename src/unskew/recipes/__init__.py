"""Recipes: every table and figure of the five papers as runs in their protocols; one file per paper."""

from __future__ import annotations

from unskew.base.errors import InputError
from unskew.base.registry import nearest
from unskew.recipes import fedaf, fedas, fedblade, fedsol, flfa
from unskew.recipes.base import Figure, Paper, Table

PAPERS: dict[str, Paper] = {module.PAPER.name: module.PAPER for module in (flfa, fedblade, fedas, fedsol, fedaf)}


def list_tables() -> list[Table]:
    """All tables, paper by paper, in the order of their numbers."""
    return [
        table for paper in PAPERS.values() for table in sorted(paper.tables.values(), key=lambda own: int(own.name[1:]))
    ]


def find(name: str) -> Table | Figure:
    """A table or figure by `paper/name`, such as fedas/t3 or fedsol/fig3."""
    paper, _, own = name.strip().lower().partition("/")
    known = [each.id for each in list_tables()] + [f.id for p in PAPERS.values() for f in p.figures.values()]
    if paper in PAPERS and own in PAPERS[paper].tables:
        return PAPERS[paper].tables[own]
    if paper in PAPERS and own in PAPERS[paper].figures:
        return PAPERS[paper].figures[own]
    if paper in PAPERS and not own:
        own_names = ", ".join(each for each in known if each.startswith(f"{paper}/"))
        raise InputError(f"'{name}' is a paper; choose one of its tables and figures: {own_names}")
    raise InputError(f"there is no table or figure '{name}'; {nearest(name, known)} (see unskew reproduce --list)")
