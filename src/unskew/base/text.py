"""The text form of components: `flfa(fedprox(mu=0.1), layers=all)` and `dirichlet:0.1`, read into tables."""

from __future__ import annotations

import ast
import re
from typing import Any

from unskew.base.errors import InputError

Table = dict[str, Any]

_COLON = re.compile(r"^([A-Za-z][\w-]*):(.+)$", re.S)
_PLACE = re.compile(r"^[^()=,]*(/[^()=,]*|\.[A-Za-z]\w{1,7})$")
_WORD_WITH_COLON = re.compile(r"(?<==)\s*([A-Za-z_]\w*:[\w.+]+)(?=\s*[,)\]])")


def parse(text: str) -> Table:
    """The table that a text such as `flfa(fedprox(mu=0.1), layers=all)` or `dirichlet:0.1` stands for."""
    text = text.strip()
    colon = _COLON.match(text)
    if colon:
        return {"name": colon[1].lower(), "args": [colon[2]]}
    try:
        # `select=fixed:head` is no Python: what stands round a colon is one word
        tree = ast.parse(_WORD_WITH_COLON.sub(r'"\1"', text), mode="eval").body
    except (SyntaxError, ValueError):
        line = f"cannot read '{text}'; expected name(argument=value, ...), such as fedprox(mu=0.1)"
        raise _unreadable(line, text) from None
    table = {"name": tree.id.lower()} if isinstance(tree, ast.Name) else _convert(tree, text)
    if not isinstance(table, dict):
        raise InputError(f"cannot read '{text}'; expected a name, such as fedavg or fedprox(mu=0.1)")
    return table


def _convert(node: ast.expr, text: str) -> Any:
    match node:
        case ast.Name(id=word):
            return {"true": True, "false": False, "none": None}.get(word.lower(), {"name": word})
        case ast.Constant(value=value) if isinstance(value, (int, float, str, bool, type(None))):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=value)) if isinstance(value, (int, float)):
            return -value
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_convert(item, text) for item in items]
        case ast.Call(func=ast.Name(id=word), args=args, keywords=keywords) if all(k.arg for k in keywords):
            table: Table = {"name": word.lower()}
            if args:
                table["args"] = [_convert(arg, text) for arg in args]
            names = [k.arg for k in keywords]
            if len(set(names)) < len(names):
                raise InputError(f"cannot read '{text}'; an argument is given twice")
            return table | {str(k.arg): _convert(k.value, text) for k in keywords}
    raise _unreadable(f"cannot read '{ast.unparse(node)}' in '{text}'; expected numbers, words, lists or "
                      "name(argument=value)", text)  # fmt: skip


def _unreadable(line: str, text: str) -> InputError:
    kinds = "npz:data.npz, folder:images or python:file.py:function"
    return InputError(
        f"'{text}' looks like a file or folder; say what it is, as in {kinds}" if _PLACE.search(text) else line
    )


def count_of(number: int, thing: str, plural: str = "") -> str:
    """`1 round`, `2 rounds`."""
    return f"{number} {thing if number == 1 else plural or thing + 's'}"


def split_list(text: str) -> list[str]:
    """Splits `fedavg,fedprox(mu=0.1, terms=[kl])` at its outer commas."""
    parts, depth = [""], 0
    for char in text:
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts if part.strip()]
