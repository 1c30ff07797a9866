"""How far does `stacked` lie from `serial`, method by method? The figures behind `stacked_tolerance`.

    python -m benchmarks.stacked_tolerance [--only fedblade] [--seeds 8] [--rounds 3] [--out F]
    python -m benchmarks.stacked_tolerance --show F

Five clients of 60 tiny images: one of a single sample, one whose last batch is one sample, one that lacks two classes,
all with different numbers of batches; momentum, weight decay. Each method and variant runs on an MLP, on `cnn8` and on
`cnn8` with BatchNorm, with several seeds, `serial` (contiguous) and `stacked` (chunks of three), in single and in
double precision. A figure is the distance between the two models as a share of the distance that `serial` moved; the
table has the largest of all seeds, after the first round and after the last, and the median of all runs. In double
precision nothing but amplified rounding is left: what is a fault of `stacked` stays where it is.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import measure
from benchmarks.digests import PLAIN, QUICK, VARIANTS, awkward_data
from unskew.base.errors import InputError
from unskew.base.process import prepare_process
from unskew.base.registry import param
from unskew.core.method import methods
from unskew.core.round_loop import rounds
from unskew.core.tolerance import NONE, USUAL, find_tolerance
from unskew.executors.serial import Serial
from unskew.executors.stacked.executor import Stacked
from unskew.methods.catalogue import at_defaults
from unskew.models.base import Architecture, Model, architectures
from unskew.runs import building
from unskew.runs.client_store import StateStore
from unskew.runs.config import from_table, read_processors
from unskew.runs.field import budget

MODELS = ("mlp", "cnn8", "cnn8(norm=batch)")
INSIDE = ("fedprox(mu=0.1)", "scaffold", "feddecorr", "fedetf", "fedblade", "fedper", "fedas")
AROUND = ("flfa({}, select=lowest)", "fedsol({})", "finetuned({})", "flfa(fedsol({}), select=lowest)")
STEADY = ("feddecorr(var_eps=0.01)", "fedblade(var_eps=0.01)", "fedavg(terms=[kl])")
WIRES = ("", "clip(norm=0.1)", "topk(share=0.1)", *(f"quantise(bits={bits})" for bits in (2, 4, 6, 8, 12, 16)))
"""What the wire does is measured with FedAvg and SCAFFOLD."""
LOCAL = {"batch": 8, "epochs": 2, "lr": 0.05, "momentum": 0.5, "weight_decay": 0.001}


class DoubleBody(nn.Sequential):
    """Takes its inputs to double precision."""

    def forward(self, x: Tensor) -> Tensor:
        """The layers' output, float64."""
        found: Tensor = super().forward(x.double())
        return found


@architectures.register("double")
class InDouble(Architecture):
    """A network in double precision."""

    inside: Architecture = param(doc="the network")

    def build(self, shape: tuple[int, ...], num_classes: int) -> Model:
        """The same layers by the same names."""
        model = self.inside.build(shape, num_classes).double()
        layers = model.body
        assert isinstance(layers, nn.Sequential)
        model.body = DoubleBody(*layers)
        return model


def specifications() -> Iterator[tuple[str, str]]:
    """Methods and wires."""
    written = [line.strip() for file in sorted(VARIANTS.glob("*.txt")) for line in file.read_text().splitlines()]
    nested = [around.format(inside) for inside in INSIDE for around in AROUND]
    defaults = [str(budget(at_defaults(name))) for name in methods if name not in ("fedaf", "feddm", "local")]
    for method in dict.fromkeys([*PLAIN, *STEADY, *defaults, *filter(None, written), *nested]):
        yield method, ""
    for method in ("fedavg", "scaffold"):
        for wire in WIRES[1:]:
            yield method, wire


def play(method: str, wire: str, model: str, seed: int, last: int, stacked: bool) -> list[Tensor]:
    """The flat model at the start and after each round."""
    config = from_table({
        "method": method, "model": model, "split": "natural", "rounds": last, "seed": seed, "local": LOCAL,
        "wire": wire, "execution": {"memory_format": "contiguous"},
    })  # fmt: skip
    task = building.prepare(config, dataset=awkward_data()).task
    executor = Stacked(task, 3) if stacked else Serial(task)
    found = [_flatten(task.initial["model"])]
    with tempfile.TemporaryDirectory(prefix="unskew-bench-") as folder:
        store = StateStore(Path(folder))
        for done in rounds(task, executor, store, task.method.init(task.server_context(0)), 1, last):
            found.append(_flatten(done.server["model"]))
        store.close()
    return found


def _flatten(model: dict[str, Tensor]) -> Tensor:
    return torch.cat([value.double().flatten() for value in model.values()])


def compare(method: str, wire: str, model: str, seed: int, last: int) -> list[float]:
    """The distance over the distance moved, after each round."""
    serial, stacked = (play(method, wire, model, seed, last, kind) for kind in (False, True))
    pairs = zip(serial[1:], stacked[1:], strict=True)
    return [float((mine - theirs).norm() / (mine - serial[0]).norm()) for mine, theirs in pairs]


def examine(method: str, wire: str, seeds: int, double_seeds: int, last: int) -> dict[str, Any]:
    """One row: the figures of each network, precision and seed after each round."""
    networks: dict[str, list[list[float]]] = {}
    for model in MODELS:
        for precision, name, count in (("float32", model, seeds), ("float64", f"double({model})", double_seeds)):
            try:
                found = [compare(method, wire, name, seed, last) for seed in range(3, 3 + count)]
            except InputError:  # it names a layer that this network does not have
                continue
            networks[f"{model} {precision}"] = found
    return {"method": method, "wire": wire, "networks": networks}


# --------------------------------------------------------------------------------------------------- the table


def promise(row: dict[str, Any]) -> float:
    """What the method and the wire promise now."""
    return find_tolerance(methods.build(row["method"]), read_processors(row["wire"]))


def condense(rows: list[dict[str, Any]]) -> dict[tuple[str, str, float], list[dict[str, Any]]]:
    """Rows by the outermost method, the wire and the promise; what a method is by default has a row of its own."""
    found: dict[tuple[str, str, float], list[dict[str, Any]]] = {}
    for row in rows:
        method = methods.build(row["method"])
        shown = row["method"] if str(method) == method.name or QUICK in row["method"] else f"{method.name}(...)"
        found.setdefault((shown.replace(QUICK, ""), row["wire"], promise(row)), []).append(row)
    return found


def show(rows: list[dict[str, Any]], out: Callable[[str], None] = print) -> None:
    """The table, in Markdown: the largest figure after the first round and after the last, and what is promised."""
    columns = ["method", "wire", "variants", *MODELS, "median", "above 1e-3", "float64", "promised"]
    for line in (columns, ["---"] * len(columns)):
        out(f"| {' | '.join(line)} |")
    for (shown, wire, promised), own in condense(rows).items():
        single = [_runs(own, f"{model} float32") for model in MODELS]
        every = [max(run) for runs in single for run in runs]
        double = [run[-1] for model in MODELS for run in _runs(own, f"{model} float64")]
        cells = [
            f"{_format(max(run[0] for run in runs))}, {_format(max(run[-1] for run in runs))}" if runs else ""
            for runs in single
        ]
        above = f"{sum(value > USUAL for value in every)} of {len(every)}"
        missed = " (missed)" if max(every) > promised else ""
        line = [f"`{shown}`", f"`{wire}`" if wire else "", str(len(own)), *cells, _format(statistics.median(every)),
                above, _format(max(double)), ("none" if promised == NONE else f"{promised:.2g}") + missed]  # fmt: skip
        out(f"| {' | '.join(line)} |")


def _runs(rows: list[dict[str, Any]], network: str) -> list[list[float]]:
    return [run for row in rows for run in row["networks"].get(network, ())]


def _format(value: float) -> str:
    return f"{value:.0e}".replace("e-0", "e-").replace("e+00", "") if value else "0"


def main() -> None:
    """Measures and shows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only methods and wires that hold this text")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--double-seeds", type=int, default=2, help="seeds in double precision")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the figures into this JSON file")
    parser.add_argument("--show", type=Path, help="show the table of an earlier file instead")
    wanted = parser.parse_args()
    if wanted.show:
        show(json.loads(wanted.show.read_text())["rows"])
        return
    logging.disable(logging.WARNING)
    rows: list[dict[str, Any]] = []
    with prepare_process(1):
        torch.set_num_threads(1)
        for method, wire in specifications():
            if wanted.only in f"{method} {wire}":
                rows.append(examine(method, wire, wanted.seeds, wanted.double_seeds, wanted.rounds))
                print(f"{len(rows)}: {method} {wire}", file=sys.stderr)
                if wanted.out:
                    measure.write_json(wanted.out, {"machine": measure.machine(), "rows": rows})
    show(rows)


if __name__ == "__main__":
    main()
