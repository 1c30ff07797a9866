"""A report as one HTML page that stands alone: figures, charts and run files inside it, nothing fetched."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unskew.base.json_text import to_json
from unskew.base.text import count_of
from unskew.base.version import __version__
from unskew.measures.figures import mean_and_std
from unskew.report.facts import Facts, Setting, make_facts
from unskew.report.headline import rank_headline
from unskew.report.reading import Gathered, gather, read_run
from unskew.report.tables import Cell, Table, render
from unskew.runs.comparison import CellResult

ASSETS = files("unskew.report") / "assets"
SHOWN = ("title", "headline", "table", "notices", "run_files", "runs")
"""What of a setting is written as HTML, not drawn."""
OLDER = (
    "Who held what is not in these folders: they are of a version that did not write labels.json, or it was changed."
)


def build_page(paths: Sequence[Path], refresh_seconds: int | None = None) -> str:
    """The report of runs and comparisons in these folders; with `refresh_seconds` the page loads itself anew."""
    return render_page(make_facts(gather(paths)), refresh_seconds=refresh_seconds)


def write_page(table: Table, cells: Sequence[CellResult], path: Path, command: str = "") -> None:
    """Writes the report of a comparison that has made its own table; `command`: what was called."""
    gathered = Gathered([read_run(cell.folder) for cell in cells])
    path.write_text(render_page(make_facts(gathered, table), command), encoding="utf-8")


def render_page(facts: Facts, command: str = "", refresh_seconds: int | None = None) -> str:
    """The page of a report's value."""
    refresh = f'<meta http-equiv="refresh" content="{int(refresh_seconds)}">\n' if refresh_seconds else ""
    filled = {
        "refresh": refresh, "title": escape(f"unskew: {facts.title}"), "style": _read("report.css"),
        "body": _write_body(facts, command), "facts": embed(_draw_from(facts)),
        "library": _read("echarts.min.js"), "script": _read("report.js"),
    }  # fmt: skip
    page = _read("page.html").split("{{")
    return page[0] + "".join(filled[name] + rest for name, _, rest in (part.partition("}}") for part in page[1:]))


def embed(value: Any) -> str:
    """JSON that can stand in a script element, whatever texts it holds."""
    text = to_json(value)
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")


def _read(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _draw_from(facts: Facts) -> dict[str, Any]:
    """What the page's charts are drawn from, and the files of its tables."""
    settings = []
    for setting in facts.settings:
        drawn = {key: _plain(own) for key, own in vars(setting).items() if key not in SHOWN}
        made = {"csv": render(setting.table, "csv"), "tex": render(setting.table, "latex")} if setting.table else {}
        settings.append({**drawn, "files": made})
    return {"settings": settings, "ranks": _plain(facts.ranks)}


def _plain(value: Any) -> Any:
    """Dataclasses as dictionaries; lists of numbers are not copied."""
    if hasattr(value, "__dataclass_fields__"):
        return {key: _plain(own) for key, own in vars(value).items()}
    if isinstance(value, Mapping):
        return {key: _plain(own) for key, own in value.items()}
    if isinstance(value, list) and value and hasattr(value[0], "__dataclass_fields__"):
        return [_plain(own) for own in value]
    return value


# ------------------------------------------------------------------------------------------------ body


def _write_body(facts: Facts, command: str) -> str:
    several = len(facts.settings) > 1
    top = [f'<header><p class="brand">unskew report</p><h1>{escape(facts.title)}</h1>']
    lines = rank_headline(facts.ranks) if several else facts.settings[0].headline
    top += _write_headline(lines)
    top.append("</header>")
    known = list(dict.fromkeys(method.name for setting in facts.settings for method in setting.methods))
    ranks = "".join(
        _section("ranks", f"Ranks over settings: {heading.removesuffix(' %')}", _tell_ranks(own, known), 0, heading)
        for heading, own in facts.ranks.items()
    )
    tabs = "".join(f'<button data-tab="{n}" aria-selected="{str(n == 0).lower()}">{escape(own.title)}</button>'
                   for n, own in enumerate(facts.settings))  # fmt: skip
    parts = [ranks, f'<nav class="tabs" aria-label="settings">{tabs}</nav>' if several else ""]
    for number, setting in enumerate(facts.settings):
        hidden = " hidden" if number else ""
        own = "".join(_write_setting(setting, number))
        if several:
            own = f'<h2 class="paper">{escape(setting.title)}</h2>{"".join(_write_headline(setting.headline))}{own}'
        parts.append(f'<div class="setting" data-setting="{number}"{hidden}>{own}</div>')
    return "\n".join([*top, *parts, _write_origin(facts, command), _FOOTER])


_FOOTER = f"<footer>Made by unskew {escape(__version__)} from run folders; nothing was trained for this page.</footer>"


def _write_headline(lines: Sequence[str]) -> list[str]:
    return [f'<p class="headline">{escape(line).replace(" %", "&nbsp;%")}</p>' for line in lines]


def _section(
    part: str, title: str, how: str, number: int, key: str = "", body: str = '<div class="body"></div>'
) -> str:
    """A part of the page; the script fills in its body."""
    about = f'<p class="how">{how}</p>' if how else ""
    return (
        f'<section class="part" data-part="{part}" data-of="{number}" data-key="{escape(key)}">'
        f"<h2>{escape(title)}</h2>{about}{body}</section>"
    )


MOST_NAMED = 4
"""Methods that a notice names."""
TITLES = {
    "curves": "Learning curves", "split": "Who holds what", "boxes": "How clients fare",
    "class_maps": "Accuracy of each class", "measured": "Measures", "feedback": "Which layers FLFA chose",
    "weights": "How FedAS weighs clients", "images": "Condensed images", "seconds": "Where the seconds went",
}  # fmt: skip
HOW = {
    "split": "Training samples of each class at each client.",
    "boxes": "Each client on its own test set in the last round that tested them, all seeds. Box: the middle half and "
    "the median; whiskers: the extremes. Dots: clients in the worst tenth; diamond: their mean.",
    "class_maps": "Of the global model on the common test set. Forgotten: best so far minus present, in points. "
    "Means over seeds.",
    "measured": "Recorded in the run, means over seeds.",
    "feedback": "Dots: the layers whose errors went down through the received weights in that round. Shade: how well "
    "clients' updates of a layer agree, by which the next round's are chosen. First seed.",
    "weights": "Each client's share in the merged model, by the trace of its Fisher information. First seed.",
    "images": "An image of each class that clients sent in the last round. First seed.",
    "seconds": "Of a whole run, mean over seeds: waiting for clients, merging, tests, measures.",
}
"""What a part shows, in a line or two."""


def _write_setting(setting: Setting, number: int) -> list[str]:
    """The parts for which there is something to show."""
    several = any(len(method.seeds) > 1 for method in setting.methods)
    spread = " The band is one standard deviation over seeds." if several else ""
    found = [_write_table(setting, number)]
    if setting.differences:
        found.append(_section("differences", "Differences under the same seeds", _tell_differences(setting), number))
    if setting.quantities:
        how = f"A click on a name hides it, a double click (or a click with Alt) singles it out.{spread}"
        found.append(_section("curves", TITLES["curves"], how, number))
    if setting.splits:
        found.append(_section("split", TITLES["split"], HOW["split"], number))
    else:
        found.append(_say_missing(TITLES["split"], escape(OLDER), number))
    for part in ("boxes", "class_maps", "measured", "feedback", "weights", "images"):
        if getattr(setting, part):
            found.append(_section(part, TITLES[part], HOW[part], number))
    if setting.unseen_images:
        names = ", ".join(map(escape, setting.unseen_images))
        text = f"Not kept by {names}: a run records some with <code>--measure condensed</code>."
        found.append(_say_missing(TITLES["images"], text, number))
    if setting.seconds:
        found.append(_section("seconds", TITLES["seconds"], HOW["seconds"], number))
    return [*found, _write_notices(setting, number)]


def _say_missing(title: str, text: str, number: int) -> str:
    return _section("missing", title, "", number, body=f'<p class="none">{text}</p>')


def _tell_ranks(ranks: Any, known: Sequence[str]) -> str:
    p = f" Friedman's test: p = {ranks.p_value:.3g}." if ranks.p_value is not None else ""
    if out := [name for name in known if name not in ranks.methods]:
        p += f" Without {_name_methods(out, len(known))}: not in all settings."
    return (
        f"Mean rank over {ranks.settings} settings, 1 is best. Those in the shade are not told apart from the best: "
        f"they are less than Nemenyi's critical difference, {ranks.critical:.2f}, behind it.{p}"
    )


def _tell_differences(setting: Setting) -> str:
    pairs = [gap for kinds in setting.differences.values() for own in kinds.values() for gap in own.values()]
    if all(gap[1] is None for gap in pairs):
        most = max((gap[3] for gap in pairs), default=0)
        there = "is one" if most == 1 else f"are {most}"
        return f"Mean differences of accuracy in points. No intervals: they take three seeds, and there {there}."
    return (
        "Mean differences of accuracy in points, seed by seed, with Student's 95 % interval. One that crosses 0 is no "
        "difference larger than the spread."
    )


def _write_notices(setting: Setting, number: int) -> str:
    same: dict[tuple[int | None, str, bool], list[str]] = {}
    for notice in setting.notices:
        same.setdefault((notice.seed, notice.text, notice.serious), []).append(notice.method)
    lines = []
    for (seed, text, serious), methods in same.items():
        who = _name_methods(methods, len(setting.methods))
        where = ", ".join(filter(None, (who, "" if seed is None else f"seed {seed}")))
        lines.append(f'<li class="{_looks(serious=serious)}">{where}{": " * bool(where)}{escape(text)}</li>')
    if not lines:
        body = '<p class="none">None: no run diverged, no reply was lost or left out.</p>'
    else:
        listed = "".join(lines)
        body = f'<ul class="notices">{listed}</ul>'
    return _section("notices", "Failures and warnings", "", number, body=body)


def _name_methods(names: Sequence[str], all_of_them: int) -> str:
    """Whom a notice is about; of many the first."""
    if len(names) == all_of_them > 2:
        return "all methods"
    named = ", ".join(f"<code>{escape(name)}</code>" for name in names[:MOST_NAMED] if name)
    return named + f" and {len(names) - MOST_NAMED} more" * (len(names) > MOST_NAMED)


def _looks(**classes: bool) -> str:
    return " ".join(name for name, has in classes.items() if has)


# ----------------------------------------------------------------------------------------------- table


def _write_table(setting: Setting, number: int) -> str:
    table = setting.table
    if table is None:
        return ""
    worded = {n for _, cells in table.rows for n, cell in enumerate(cells, 1) if cell.words}
    head = "".join(f'<th class="{_looks(words=n in worded)}"><button data-column="{n}">{escape(column)}</button></th>'
                   for n, column in enumerate(("method", *table.columns)))  # fmt: skip
    bodies = []
    for heading, rows in table.blocks():
        above = (
            f'<tr class="block"><th colspan="{len(table.columns) + 1}">{escape(heading)}</th></tr>' if heading else ""
        )
        lines = "".join(_write_row(table, name, cells) for name, cells in rows)
        bodies.append(f"<tbody>{above}{lines}</tbody>")
    notes = "".join(f"<li>{escape(note)}</li>" for note in table.legend)
    buttons = '<span class="files"><button data-file="csv">CSV</button><button data-file="tex">LaTeX</button></span>'
    rows_of_all = "".join(bodies)
    body = (
        f'<div class="tools">{buttons}</div>'
        f'<div class="scroll"><table class="figures"><thead><tr>{head}</tr></thead>{rows_of_all}</table></div>'
        f'<ul class="notes">{notes}</ul>'
    )
    return _section("table", "Figures", "", number, body=body)


def _write_row(table: Table, name: str, cells: Sequence[Cell]) -> str:
    tag = table.tag(name, personal=False)
    tagged = f'<span class="tag">{escape(tag)}</span>' if tag else ""
    first = f'<td title="{escape(name)}" data-value="{escape(name)}"><code>{escape(name)}</code>{tagged}</td>'
    return f"<tr>{first}{''.join(map(_write_cell, cells))}</tr>"


def _write_cell(cell: Cell) -> str:
    if cell.words or not cell.values:
        return f'<td class="{_looks(words=bool(cell.words))}" data-value="">{escape(cell.text)}</td>'
    figure, _, spread = cell.text.partition(" ± ")
    sd = f' <span class="sd">± {spread}</span>' if spread else ""
    return f'<td class="{cell.mark}" data-value="{mean_and_std(cell.values)[0]:.6g}">{figure}{sd}</td>'


# ---------------------------------------------------------------------------------------------- origin


def _write_origin(facts: Facts, command: str) -> str:
    """Where the figures come from, folded away."""
    versions = (
        f"unskew {__version__}, Python {platform.python_version()}, torch {torch.__version__}, numpy {np.__version__}"
    )
    runs = [run for setting in facts.settings for run in setting.runs]
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(str(run[key]))}</td>" for key in ("folder", "method", "seed", "rounds", "state"))
        + "</tr>" for run in runs
    )  # fmt: skip
    head = "".join(f"<th>{name}</th>" for name in ("folder", "method", "seed", "rounds", "state"))
    listed = (
        f'<div class="scroll"><table class="runs"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    )
    called = f"<p>Command</p><pre>{escape(command)}</pre>" if command else ""
    file = shlex.quote(f"{runs[0]['folder']}/run.toml")
    again = f"<p>Run one again</p><pre>unskew run {escape(file)} --out NEW_FOLDER</pre>"
    texts = "".join(
        f"<details><summary><code>{escape(name)}</code></summary><pre>{escape(text)}</pre></details>"
        for setting in facts.settings for name, text in setting.run_files.items()
    )  # fmt: skip
    problems = "".join(f'<li class="serious">{escape(line)}</li>' for line in facts.problems)
    unread = f'<ul class="notices">{problems}</ul>' if problems else ""
    return (
        f'<section class="part" data-part="origin"><h2>Where this comes from</h2>{unread}'
        f"<details><summary>{count_of(len(runs), 'run')}</summary><div>{listed}</div></details>"
        f"<details><summary>Command and versions</summary><div>{called}{again}"
        f"<p>This page was made with {escape(versions)}.</p></div></details>"
        f"<details><summary>Run files, the first of each method</summary>{texts}</details></section>"
    )
