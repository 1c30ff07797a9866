"""Does feedback in a layer lower drift? FLFA's claim, without the noise of two trajectories.

    python -m benchmarks.paired_drift FOLDER [--dataset BloodMNIST] [--seed 0] [--before 20] [--rounds 2] [--layers 8]

FedAvg with the paper's protocol (recipes/flfa.py) plays `before` rounds. Then each of some more rounds is played again
and again from the same model, with the same clients and batches: as it is, and with feedback in one layer at a time.
What differs is the feedback alone: in drift, and in the new global model's test accuracy and loss. The layers are
spread evenly over the order of their similarity z^l (eq. 14) in the round before, from the least to the most alike; the
first layer of the network, where feedback changes nothing, is left out. FOLDER keeps the model of every round and a
line for each figure; stopped, it goes on where it was. Studies of several seeds are put together by

    python -m benchmarks.paired_drift --together FOLDER...
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from rich.console import Console
from rich.table import Table

from unskew import registries
from unskew.base import storage
from unskew.base.process import prepare_process
from unskew.base.tree import Groups
from unskew.core.per_client import MemoryStore
from unskew.core.round_loop import Round, rounds
from unskew.core.task import Task
from unskew.executors.serial import Serial
from unskew.measures.drift import Drift
from unskew.measures.similarity import Similarity
from unskew.recipes.flfa import run_on
from unskew.runs import building
from unskew.runs.evaluation import evaluate_global

LOOKING = (Drift(), Similarity())


class Study:
    """FedAvg's models round by round, and rounds that are played from them."""

    def __init__(self, dataset: str, seed: int, folder: Path) -> None:
        self._run = replace(run_on("FedAvg", dataset, False), seed=seed)
        self._data = building.prepare_data(self._run)
        self._partition = building.cut(self._run.resolve(self._data), self._data)
        self._plain = self._make_task("fedavg")
        self._folder = folder

    def _make_task(self, method: str) -> Task:
        run = replace(self._run, method=registries.methods.build(method)).resolve(self._data)
        task = building.make_task(run, self._data, self._partition)
        return replace(task, observers=LOOKING, server_store=MemoryStore())

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers that can have feedback, in the network's order."""
        return tuple(self._plain.net.names.layers)

    def play(self, number: int, server: Groups, layer: str = "") -> tuple[Round, dict[str, Any]]:
        """One round from this state of the server, with feedback in a layer if one is named; and its figures."""
        task, began = self._plain, time.perf_counter()
        if layer:
            task = self._make_task(f"flfa(fedavg, select=fixed:{layer})")
            server = {**task.method.init(task.server_context(0)), **server}
        done = next(rounds(task, Serial(task), MemoryStore(), server, number, number))
        found: dict[str, Any] = {"round": number, "layer": layer, "seconds": time.perf_counter() - began}
        for measure in LOOKING:
            found |= measure.measure(cast("Any", done.observed[f"{measure.name}/delta"]))
        tested, _ = evaluate_global(task, Serial(task), done.server, number)
        return done, found | {key: tested[key] for key in ("accuracy", "loss")}

    def reach(self, number: int) -> Groups:
        """The server's state after so many rounds of FedAvg; played only where the folder does not have it."""
        have = [k for k in range(number, 0, -1) if self._file(k).exists()][:1] or [0]
        server = (
            storage.decode(self._file(have[0]).read_bytes())
            if have[0]
            else self._plain.method.init(self._plain.server_context(0))
        )
        for k in range(have[0] + 1, number + 1):
            done, found = self.play(k, server)
            server = done.server
            self.note(found)  # before the model: stopped in between, the round is played and noted again
            storage.write_atomic(self._file(k), storage.encode(server))
            print(f"round {k}: drift {found['drift']:.4g}, {found['seconds']:.0f} s", flush=True)
        return server

    def _file(self, number: int) -> Path:
        return self._folder / f"after-{number}.safetensors"

    def note(self, found: dict[str, Any]) -> None:
        """Keeps a figure."""
        with (self._folder / "figures.jsonl").open("a") as file:
            file.write(json.dumps(found) + "\n")

    def read(self) -> dict[tuple[int, str], dict[str, Any]]:
        """The figures so far, by round and layer."""
        return read_figures(self._folder)


def spread_over(z: dict[str, float], count: int) -> list[str]:
    """So many layers, evenly spread over their order from the least to the most alike."""
    order = sorted(z, key=lambda layer: z[layer])
    return [order[round(k * (len(order) - 1) / max(1, count - 1))] for k in range(min(count, len(order)))]


def show(study: Study, layers: list[str], played: list[int], console: Console) -> None:
    """For each layer the change of drift in every round, and their mean."""
    found = study.read()
    table = Table("layer", "z before", *(f"round {k}" for k in played), "mean change of drift")
    for layer in layers:
        changes = [compare(found, k, layer)["drift"] for k in played]
        known = [change for change in changes if change is not None]
        said = ["" if change is None else f"{100 * change:+.1f} %" for change in changes]
        z = found[played[0] - 1, ""]["similarity"][layer]
        table.add_row(layer, f"{z:.3f}", *said, f"{100 * statistics.mean(known):+.1f} %" if known else "")
    console.print(table)


def put_together(folders: list[Path], console: Console) -> None:
    """By place in the order of similarity, and for each round: means over studies; at last over all whole rounds."""
    by_place: dict[int, list[dict[str, float | None]]] = {}
    by_round: list[tuple[str, list[dict[str, float | None]]]] = []
    for folder in folders:
        found = read_figures(folder)
        layers = sorted({layer for _, layer in found if layer})
        played = [number for number, layer in found if not layer and all((number, each) in found for each in layers)]
        if not layers or not played:
            console.print(f"{folder} has no round yet that was played with feedback in every layer: left out")
            continue
        z = found[min(played) - 1, ""]["similarity"]
        layers.sort(key=lambda layer: z[layer])
        for number in sorted(played):
            changes = [compare(found, number, layer) for layer in layers]
            by_round.append((f"{folder.name}, round {number}", changes))
            for place, change in enumerate(changes, 1):
                by_place.setdefault(place, []).append(change)
    table = Table("", *(f"{key} ({unit})" for key, (_, unit) in SHOWN.items()), "lower drift")
    for name, changes in (*((f"place {place}", found) for place, found in sorted(by_place.items())), *by_round):
        table.add_row(name, *(say_mean(changes, key) for key in SHOWN), count_lower(changes))
    console.print(table)
    rounds_means = [
        {key: statistics.mean(known) if (known := list_known(changes, key)) else None for key in SHOWN}
        for _, changes in by_round
    ]
    said = (f"{key} {say_mean(rounds_means, key)} {SHOWN[key][1]}" for key in SHOWN)
    console.print(f"mean over {len(by_round)} rounds ± its standard error: {'; '.join(said)}")


SHOWN = {"drift": (100.0, "%"), "accuracy": (100.0, "points"), "loss": (1.0, "absolute")}
"""What is compared, in which unit."""


def compare(found: dict[tuple[int, str], dict[str, Any]], number: int, layer: str) -> dict[str, float | None]:
    """What feedback in a layer changed in a round: drift relative to the plain round's, the others as differences."""
    plain, own = found.get((number, ""), {}), found.get((number, layer), {})
    changes: dict[str, float | None] = {
        key: own[key] - plain[key] if key in own and key in plain else None for key in ("accuracy", "loss")
    }
    return {"drift": own["drift"] / plain["drift"] - 1 if plain and own else None, **changes}


def list_known(changes: list[dict[str, float | None]], key: str) -> list[float]:
    """The changes of a figure where both rounds have it."""
    return [value for change in changes if (value := change[key]) is not None]


def count_lower(changes: list[dict[str, float | None]]) -> str:
    """How many drifts are lower with feedback."""
    known = list_known(changes, "drift")
    return f"{sum(value < 0 for value in known)} of {len(known)}"


def say_mean(changes: list[dict[str, float | None]], key: str) -> str:
    """A mean with its standard error."""
    known, scale = list_known(changes, key), SHOWN[key][0]
    if not known:
        return ""
    error = f" ± {scale * statistics.stdev(known) / len(known) ** 0.5:.2g}" if len(known) > 1 else ""
    return f"{scale * statistics.mean(known):+.3g}{error}"


def read_figures(folder: Path) -> dict[tuple[int, str], dict[str, Any]]:
    """The figures of a study so far, by round and layer."""
    path = folder / "figures.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []
    return {(line["round"], line["layer"]): line for line in lines}


def main() -> None:
    """Plays, notes, shows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="+")
    parser.add_argument("--together", action="store_true", help="play nothing, show what studies found together")
    parser.add_argument("--dataset", default="BloodMNIST", help="a column of FLFA's Table 1")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--before", type=int, default=20, help="rounds of FedAvg before the comparison")
    parser.add_argument("--rounds", type=int, default=2, help="rounds that are compared")
    parser.add_argument("--layers", type=int, default=8)
    wanted = parser.parse_args()
    if wanted.together:
        put_together(wanted.folder, Console(width=110))
        return
    folder, *more = wanted.folder
    if more:
        parser.error(f"one folder for a study, got {1 + len(more)}; several go with --together")
    folder.mkdir(parents=True, exist_ok=True)
    with prepare_process(1):
        study = Study(wanted.dataset, wanted.seed, folder)
        server = study.reach(wanted.before)
        z = study.read()[wanted.before, ""]["similarity"]
        layers = spread_over({layer: z[layer] for layer in study.layers[1:] if layer in z}, wanted.layers)
        played = list(range(wanted.before + 1, wanted.before + wanted.rounds + 1))
        for number in played:
            for layer in layers:
                if (number, layer) not in study.read():
                    _, found = study.play(number, server, layer)
                    study.note(found)
                    print(f"round {number}, {layer}: drift {found['drift']:.4g}, {found['seconds']:.0f} s", flush=True)
            server = study.reach(number)
            show(study, layers, played, Console(width=110))


if __name__ == "__main__":
    main()
