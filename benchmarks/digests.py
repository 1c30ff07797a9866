"""Digests of many short runs: two versions of the code that print the same ones compute the same numbers.

    python -m benchmarks.digests --out before.json        # on one version
    python -m benchmarks.digests --against before.json    # on the other: names every difference, exit code 1 if any

For each specification and executor: the final model, the rows of rounds and of clients without their times, and the
states that clients keep. Digests hold for one machine, one torch and one number of threads; the file says which.
Only the public interface is used, so that the script runs on old and new layouts of the package alike.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import logging
import platform
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

import unskew

STORES = ("unskew.runs.client_store", "unskew.core.store")
"""Where the class `StateStore` is, newest layout first."""
VARIANTS = Path(__file__).parent.parent / "tests" / "contract" / "variants"
EXECUTORS: dict[str, dict[str, Any]] = {
    "serial": {"executor": "serial", "memory_format": "contiguous"},
    "channels_last": {"executor": "serial", "memory_format": "channels_last"},
    "pool": {"executor": "pool", "workers": 2, "memory_format": "contiguous"},
    "stacked": {"executor": "stacked", "chunk": 3},
}
AWKWARD = {
    "model": "cnn8(norm=batch)", "split": "natural", "rounds": 3, "seed": 3, "batch": 8, "epochs": 2, "lr": 0.05,
    "momentum": 0.5, "dropout": 0.3,
}  # fmt: skip
"""Five clients, BatchNorm, missing classes, one sample in all, a last batch of one sample, drop-outs."""
DIGITS = {"data": "digits", "clients": 8, "sample": 0.5, "rounds": 3, "seed": 1, "batch": 16, "epochs": 1, "lr": 0.05}
"""Without normalisation layers."""
QUICK = "(steps=3, server_epochs=2, ipc=2)"
PLAIN = (
    "fedavg", "fedprox(mu=0.1)", "scaffold", f"fedaf{QUICK}", f"feddm{QUICK}", "fedper", "fedas", "fedetf", "fedblade",
    "feddecorr", "fedsol", "finetuned(fedavg)", "flfa", "flfa(fedsol(rho=1.0))", "flfa(fedas)",
    "fedsol(fedprox(mu=1.0))", "finetuned(flfa(scaffold))",
    "fedsol(terms=[prox(mu=0.1)])", "flfa(fedblade(var_eps=0.01), select=lowest)",
)  # fmt: skip
"""Each method with its defaults, and nestings."""
SITUATIONS: dict[str, dict[str, Any]] = {
    "stragglers": {"stragglers": 0.5, "sample": 1.0},
    "augmented": {"augment": "crop_flip", "data": "digits"},
    "dropout": {"dropout": 0.4, "lr_decay": 0.9, "weight_decay": 0.001, "momentum": 0.9},
    "steps": {"steps": 3, "eval_every": 2, "clients_every": 1, "local_test": "holdout", "validation": 0.1},
    "virtual": {"split": "virtual(samples=18)", "clients": 1000, "sample": 0.004},
    "dirichlet": {"split": "dirichlet_uncapped:0.5", "split_seed": 7, "model": "mlp", "local_test": "none"},
    "measured": {"measure": "drift,divergence,similarity,separability,rank,collapse,orthogonality,fisher,forgetting,"
                            "local_accuracy,rounds_to"},
}  # fmt: skip


def specifications() -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and options of the runs."""
    written = [line.strip() for file in sorted(VARIANTS.glob("*.txt")) for line in file.read_text().splitlines()]
    for method in dict.fromkeys([*PLAIN, *filter(None, written)]):
        for executor, how in EXECUTORS.items():
            yield f"awkward {method} {executor}", {"method": method, "data": awkward_data(), **AWKWARD, **how}
    for method in PLAIN:
        for executor, how in EXECUTORS.items():
            yield f"digits {method} {executor}", {"method": method, **DIGITS, **how}
    for situation, more in SITUATIONS.items():
        for method in ("fedavg", "scaffold", "fedas", "fedsol"):
            for executor, how in EXECUTORS.items():
                if (situation, method) == ("dirichlet", "fedas"):
                    continue  # personal methods need local tests
                yield f"{situation} {method} {executor}", {"method": method, **DIGITS, **more, **how}


def awkward_data() -> unskew.Dataset:
    """Three classes of 2x4x4 images on five clients: one of a single sample, one that misses two classes."""
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(60) % 3
    x = torch.randint(0, 100, (60, 2, 4, 4), generator=rng, dtype=torch.uint8) + (60 * y).to(torch.uint8).view(
        -1, 1, 1, 1
    )
    groups = torch.zeros(60, dtype=torch.int64)
    groups[0] = 1
    groups[torch.arange(3, 60, 3)[:9]] = 2
    groups[40:50], groups[50:] = 3, 4
    samples = unskew.Samples(x, y)
    half = (0.5, 0.5)
    return unskew.Dataset("tiny", samples, samples, tuple("abc"), half, half, groups=groups, group_names=tuple("01234"))


def digest(options: dict[str, Any]) -> dict[str, str]:
    """The run's digests; a run that is refused has the refusal's text instead."""
    options = dict(options)
    method = options.pop("method")
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "run"
        try:
            with KeptStates() as kept:
                unskew.run(method, out=out, **options)
        except unskew.InputError as error:
            return {"refused": str(error).replace(str(out), "RUN")}
        except unskew.ClientError as error:
            return {"failed": str(error)}
        return {
            "model": of_tensors(safetensors.torch.load((out / "model.safetensors").read_bytes())),
            "rounds": of_rows(out / "rounds.jsonl"),
            "clients": of_rows(out / "clients.jsonl"),
            "states": of_text(json.dumps(sorted(kept.digests.items()))),
        }


class KeptStates:
    """Looks on while clients' states are stored; the last one of each client counts."""

    def __enter__(self) -> KeptStates:
        """Begins to look on."""
        self.digests: dict[int, str] = {}
        self._store, self._put = _store(), _store().put
        put, digests = self._put, self.digests

        def looked_at(store: Any, client: int, state: Any, round_: int) -> None:
            flat = {f"{group}/{name}": value for group, tree in state.items() for name, value in tree.items()}
            digests[client] = of_tensors(flat)
            put(store, client, state, round_)

        self._store.put = looked_at
        return self

    def __exit__(self, *_: object) -> None:
        """Ends it."""
        self._store.put = self._put


def _store() -> Any:
    for place in STORES:
        try:
            return importlib.import_module(place).StateStore
        except ModuleNotFoundError:
            continue
    raise SystemExit(f"none of {', '.join(STORES)} holds the class StateStore")


def of_tensors(tensors: dict[str, torch.Tensor]) -> str:
    """Names, types, shapes and bytes."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().contiguous()
        found.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        found.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def of_rows(path: Path) -> str:
    """Rows without their times."""
    return of_text("\n".join(json.dumps(_timeless(json.loads(line))) for line in path.read_text().splitlines()))


def _timeless(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != "seconds"}


def of_text(text: str) -> str:
    """A short hash."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def machine() -> dict[str, str]:
    """What the digests hold for."""
    processor = next((line for line in _lines(Path("/proc/cpuinfo")) if line.startswith("model name")), "unknown")
    return {"processor": processor.partition(": ")[2], "torch": torch.__version__, "python": platform.python_version()}


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the digests into this JSON file")
    parser.add_argument("--against", type=Path, help="compare with the digests in this file")
    parser.add_argument("--only", default="", help="only specifications whose name holds this text")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    found: dict[str, dict[str, str]] = {}
    for number, (name, options) in enumerate(specifications(), 1):
        if arguments.only in name:
            found[name] = digest(options)
            if sys.stderr.isatty() or number % 50 == 0:
                print(f"{number}: {name}", file=sys.stderr)
    if arguments.out:
        arguments.out.write_text(json.dumps({"machine": machine(), "digests": found}, indent=0) + "\n")
    if arguments.against:
        before = json.loads(arguments.against.read_text())
        if before["machine"] != machine():
            print(f"note: these were made by {before['machine']}, this is {machine()}")
        known = {name: own for name, own in before["digests"].items() if arguments.only in name}
        differing = {name for name in known if known[name] != found.get(name)}
        for name in sorted(differing):
            old, new = known.get(name, {}), found.get(name, {})
            parts = ", ".join(part for part in sorted({*old, *new}) if old.get(part) != new.get(part))
            print(f"differs: {name}: {parts if new else 'not run now'}")
        new = found.keys() - known.keys()
        print(f"{len(known.keys() - differing)} of {len(known)} specifications are equal, {len(new)} are new")
        sys.exit(bool(differing))


if __name__ == "__main__":
    main()
