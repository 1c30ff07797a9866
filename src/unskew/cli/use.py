"""`unskew predict` and `unskew export`: a trained model at work, here or in another program."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import typer
from torch import Tensor

from unskew.base import storage
from unskew.base.errors import InputError
from unskew.base.text import count_of
from unskew.cli.output import console, describe_figures, print_json
from unskew.cli.outputs import PREDICTIONS, check_out
from unskew.cli.progress import DownloadProgress
from unskew.cli.shared_flags import DataDir, Json
from unskew.data.dataset import Samples
from unskew.data.files.arrays import Array
from unskew.data.sources import load
from unskew.data.sources.base import sources
from unskew.measures.classification import Figures, Tally
from unskew.runs.exporting import KINDS, write_model
from unskew.runs.saved import SavedRun

Run = Annotated[Path, typer.Argument(metavar="RUN", help="the run's folder")]
Accept = Annotated[
    bool, typer.Option("--accept-changed-code", help="use it although your own code changed since the run")
]
Client = Annotated[int | None, typer.Option(help="the model of this client instead of the global one")]


def predict(
    path: Run,
    data: Annotated[str | None, typer.Option(help="other data than the run's own, such as npz:new.npz")] = None,
    part: Annotated[Literal["test", "train"], typer.Option(help="which samples of the data")] = "test",
    inputs: Annotated[Path | None, typer.Option(help="samples without labels instead: an array in a .npy file")] = None,
    client: Client = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="write a line for each sample (.csv)")] = None,
    accept_changed_code: Accept = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Predicts with a run's model, or a client's own, and tells the accuracy.

    Without --data: the run's own test samples, or those that the client is tested on.
    """
    run = SavedRun(path, data_dir=data_dir, accept_changed_code=accept_changed_code)
    if data is not None and inputs is not None:
        raise InputError("--data and --inputs both say what to predict; give one of them")
    if out is not None and out.suffix.lower() != ".csv":
        raise InputError(f"--out expects the name of a .csv file, got '{out}'")
    if out is not None:
        check_out(out)
    samples = None if inputs is not None else _pick(run, data, part, client, data_dir)
    labels = None if samples is None else samples.y
    x = samples.x if samples is not None else _read_array(inputs)
    scores = run.predict(x) if client is None else run.client(client).predict(x)
    predicted = scores.argmax(1)
    right = None if labels is None or not len(labels) else (predicted == labels).double().mean().item()
    if out is not None:
        _write_lines(out, scores, labels, run.data.classes)
    figures = {} if right is None or labels is None else _judge(run, labels, scores)
    if as_json:
        found = {"run": str(path), "client": client, "samples": len(scores), "accuracy": right, "figures": figures}
        print_json({**found, **({} if out is not None else {"predictions": predicted.tolist()})})
        return
    who = "the global model" if client is None else f"client {client}"
    accuracy = "" if right is None else f", accuracy {100 * right:.2f} %"
    more = "".join(f", {name} {text}" for name, text in describe_figures(figures).items())
    console.print(f"{who}: {count_of(len(scores), 'sample')}{accuracy}{more}", soft_wrap=True)
    if out is not None:
        console.print(f"wrote {out}", soft_wrap=True)


def _judge(run: SavedRun, labels: Tensor, scores: Tensor) -> Figures:
    """The figures beyond accuracy."""
    tally = Tally(run.data.classes, run.config.method.gives_logits)
    tally.add(labels, scores.argmax(1), scores)
    return tally.close().figures


def _pick(run: SavedRun, data: str | None, part: str, client: int | None, data_dir: Path | None) -> Samples:
    if data is None and client is not None and part == "test":
        return run.client(client).test_samples()
    if data is None:
        return run.data.test if part == "test" else run.data.train
    other = load(sources.build(data), data_dir, DownloadProgress())
    if other.classes != run.data.classes:
        raise InputError(f"{data}: {_explain_classes(run.data.classes, other.classes)}")
    return other.test if part == "test" else other.train


def _explain_classes(known: tuple[str, ...], got: tuple[str, ...]) -> str:
    """The first difference between the classes of a run and others."""
    numbers = f"expected the run's {count_of(len(known), 'class', 'classes')}, got {len(got)}"
    if new := [name for name in got if name not in known]:
        return f"{numbers}; '{new[0]}' is none of the run's"
    if missing := [name for name in known if name not in got]:
        return f"{numbers}; '{missing[0]}' is not among them"
    for place, (wanted, found) in enumerate(zip(known, got, strict=False)):
        if wanted != found:
            return f"{numbers} in another order: class {place} is '{found}', of the run '{wanted}'"
    return f"{numbers}, some with the same name"


def _read_array(path: Path | None) -> Array:
    assert path is not None
    try:
        found = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"--inputs: {path} cannot be read as a .npy file: {error}") from None
    if not isinstance(found, np.ndarray):
        raise InputError(f"--inputs: expected one array (.npy), got {path}; with labels, give it as --data npz:{path}")
    return found


def _write_lines(path: Path, scores: Tensor, labels: Tensor | None, classes: tuple[str, ...]) -> None:
    """A line for each sample: its label if it is known, the predicted class and how sure that is."""
    shares = scores.softmax(1)
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(PREDICTIONS)
    for number, (share, predicted) in enumerate(zip(*shares.max(1), strict=True)):
        label = "" if labels is None else classes[int(labels[number])]
        lines.writerow([number, label, classes[int(predicted)], f"{float(share):.6f}"])
    _write(path, text.getvalue().encode())


def export(
    path: Run,
    out: Annotated[Path, typer.Option("--out", "-o", help=f"the file: {', '.join(KINDS)}")],
    client: Client = None,
    accept_changed_code: Accept = False,
    data_dir: DataDir = None,
) -> None:
    """Writes a run's model, or a client's own, as a file for other programs.

    .safetensors: weights by name, with classes and normalisation beside them. .pt2 (torch.export) and .onnx: the whole
    model, which takes samples as the data hold them (pixels as uint8) and gives a score for each class.
    """
    if out.suffix.lower() not in KINDS:
        raise InputError(f"--out expects the name of a {', '.join(KINDS)} file, got '{out}'")
    check_out(out)
    run = SavedRun(path, data_dir=data_dir, accept_changed_code=accept_changed_code)
    model = run.model() if client is None else run.client(client).model()
    notes = {"run": run.config.hash, "method": str(run.config.method), "model": str(run.config.model), "client": client}
    _write(out, write_model(model, run.data, notes, out.suffix.lower()))
    console.print(
        f"wrote {out}: {'the global model' if client is None else f'the model of client {client}'}", soft_wrap=True
    )


def _write(path: Path, data: bytes) -> None:
    try:
        storage.write_atomic(path, data)
    except OSError as error:
        raise InputError(f"cannot write '{path}': {error.strerror}; choose a writable place") from None
