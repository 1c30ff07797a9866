"""One round's way through the code: which functions are called, in which modules, how often the module changes.

    python -m benchmarks.trace_round                 # the counts, and calls by module
    python -m benchmarks.trace_round --calls         # every call in its order

A round of FedSOL with two clients, one batch each, on digits; the second of three, so that nothing is set up or tested
in it. A module changes where a function calls one of another module of the package.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import unskew

ROOT = str(Path(unskew.__file__).parent)


class Tracer:
    """Counts calls of the package's own functions while it is on."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.changes = 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Told by the interpreter of every call."""
        place = frame.f_code.co_filename
        if event != "call" or not place.startswith(ROOT) or frame.f_code.co_name.startswith("<"):
            return
        self.calls.append((place, frame.f_code.co_name))
        above = frame.f_back
        while above is not None and not above.f_code.co_filename.startswith(ROOT):
            above = above.f_back
        self.changes += above is None or above.f_code.co_filename != place


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="fedsol")
    parser.add_argument("--calls", action="store_true", help="list every call")
    arguments = parser.parse_args()
    tracer = Tracer()

    def watch(row: dict[str, Any]) -> None:
        sys.setprofile(tracer if row["round"] == 1 else None)

    unskew.run(
        arguments.method, data="digits", clients=2, rounds=3, steps=1, split="iid", local_test="none", eval_every=100,
        watch=watch, memory_format="contiguous",
    )  # fmt: skip
    sys.setprofile(None)
    modules = Counter(Path(place).relative_to(ROOT).as_posix() for place, _ in tracer.calls)
    if arguments.calls:
        for place, name in tracer.calls:
            print(f"{Path(place).relative_to(ROOT)}: {name}")
    for module, count in modules.most_common():
        print(f"{count:5}  {module}")
    print(f"{len(tracer.calls)} calls, {len(modules)} modules, {tracer.changes} module changes")


if __name__ == "__main__":
    main()
