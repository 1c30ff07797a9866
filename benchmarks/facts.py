"""Writes what every method sends, keeps and combines with: `python -m benchmarks.facts`.

It plays each method of the package on two tiny clients, alone and inside every wrapper (seconds in all), writes
src/unskew/methods/facts.json for `unskew methods`, and the table in docs/methods/index.md. Run it after a method was
added or changed; tests/runs/test_trial.py and tests/test_docs.py say when that was forgotten.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import unskew.runs.config  # noqa: F401 - registers everything
from unskew.core.method import methods
from unskew.methods.catalogue import FACTS, FAMILIES, by_family, is_ours, say_inside, say_parts
from unskew.runs import trial

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "methods" / "index.md"
TABLE = re.compile(r"(?<=<!-- what travels: written by python -m benchmarks.facts -->\n).*?(?=<!-- end -->)", re.S)


def find_all() -> dict[str, dict[str, Any]]:
    """The facts of every method of the package."""
    return {name: tidy(trial.describe(name)) for name in methods if is_ours(name)}


def tidy(facts: Any) -> Any:
    """With four digits: more say nothing."""
    if isinstance(facts, dict):
        return {key: tidy(value) for key, value in facts.items()}
    return round(facts, 4) if isinstance(facts, float) else facts


def write_table(facts: dict[str, dict[str, Any]]) -> str:
    """The table of docs/methods/index.md, a row for each method; linked where there is a page."""
    lines = [
        "| method | to a client | from a client | a client keeps | the server keeps | goes inside |",
        "|---" * 6 + "|",
    ]
    for family, names in by_family().items():
        lines.append(f"| **{family}**: {FAMILIES[family]} |" + " |" * 5)
        for name in (name for name in names if name in facts):
            own = facts[name]
            shown = f"[`{name}`]({name}.md)" if (PAGE.parent / f"{name}.md").exists() else f"`{name}`"
            shown += "" if own["model"] == trial.PLAIN else f" on `{own['model']}`"
            sent, kept = [say_parts(own[key]) for key in ("down", "up")], [own[key] for key in ("client", "server")]
            sent[0] += f"; once {say_parts(own['once'])}" if own["once"] else ""
            cells = [shown, *sent, *(say_parts(parts) if parts else "" for parts in kept), say_inside(own["inside"])]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Plays and writes."""
    facts = find_all()
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(own, ensure_ascii=False)}" for name, own in facts.items())
    FACTS.write_text(f'{{"methods": {{\n{lines}\n}}}}\n', encoding="utf-8")
    PAGE.write_text(TABLE.sub(lambda _: write_table(facts), PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"{len(facts)} methods in {FACTS.relative_to(ROOT)} and {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
