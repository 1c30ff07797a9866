"""A comparison as one HTML page that stands alone: table, pictures and the run file inside it, nothing fetched."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

from unskew.report.tables import Table

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1b2733; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; }
th, td { text-align: right; padding: .3rem .7rem; border-bottom: 1px solid #dde3e8; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; white-space: normal; overflow-wrap: anywhere; }
thead th { position: sticky; top: 0; background: #fff; box-shadow: inset 0 -2px #1b2733; }
tr.block th { padding-top: 1.2rem; color: #51606e; font-weight: 600; }
tbody tr:hover td { background: #f4f6f8; }
td.best { font-weight: 700; } td.second { text-decoration: underline; }
img { max-width: 100%; height: auto; } li { color: #51606e; }
pre { background: #f4f6f8; padding: 1rem; overflow: auto; }
"""


def write_page(table: Table, pictures: Sequence[tuple[str, Path]], run_file: str, path: Path) -> None:
    """Writes the page; `pictures` are (caption, PNG file)."""
    head = "".join(f"<th>{escape(column)}</th>" for column in ("method", *table.columns))
    rows = ""
    for heading, block in table.blocks():
        if heading:
            rows += f'<tr class="block"><th colspan="{len(table.columns) + 1}">{escape(heading)}</th></tr>'
        for name, cells in block:
            figures = "".join(f'<td class="{cell.mark}">{escape(cell.text)}</td>' for cell in cells)
            tag = table.tag(name, personal=False)
            rows += f"<tr><td><code>{escape(name)}</code>{tag}</td>{figures}</tr>"
    notes = "".join(f"<li>{escape(note)}</li>" for note in table.legend)
    drawn = "".join(
        f'<h2>{escape(caption)}</h2><img alt="{escape(caption)}" src="data:image/png;base64,{_base64(picture)}">'
        for caption, picture in pictures
        if picture.exists()
    )
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>unskew: {escape(table.title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style><body>'
        f"<h1>{escape(table.title)}</h1><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        f"<ul>{notes}</ul>{drawn}"
        f"<h2>The run file of the first cell</h2><pre>{escape(run_file)}</pre></body></html>\n"
    )
    path.write_text(page, encoding="utf-8")


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
