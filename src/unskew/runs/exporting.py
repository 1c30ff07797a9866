"""A model as a file for other programs: its weights alone, or the whole of it with its normalisation."""

from __future__ import annotations

import io
import logging
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from unskew.base import storage
from unskew.base.errors import InputError, one_line
from unskew.base.tree import Tree
from unskew.base.version import MAKER
from unskew.data.dataset import Dataset
from unskew.data.transforms import normalise
from unskew.models.base import Model

KINDS = (".safetensors", ".pt2", ".onnx")


class Scorer(nn.Module):
    """From samples as the data hold them to scores."""

    def __init__(self, model: Model, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        self.model, self.mean, self.std = model, mean, std

    def forward(self, x: Tensor) -> Tensor:
        """Scores [N, classes]."""
        scores: Tensor = self.model(normalise(x, self.mean, self.std)).logits
        return scores


def write_model(model: Model, data: Dataset, notes: dict[str, Any], kind: str) -> bytes:
    """The bytes of such a file; `notes` go along with the weights, as do classes, shape and normalisation."""
    about = {
        **notes, "about": MAKER, "classes": list(data.classes), "shape": list(data.shape), "mean": list(data.mean),
        "std": list(data.std), "input": str(data.train.x.dtype).removeprefix("torch."),
    }  # fmt: skip
    if kind == ".safetensors":
        params: Tree = dict(model.named_parameters())
        return storage.encode({"model": params, "buffers": dict(model.named_buffers())}, about)
    scorer = Scorer(model, data.mean, data.std).eval()
    example = data.test.x[:2] if len(data.test.x) > 1 else data.train.x[:2]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _write_onnx(scorer, example) if kind == ".onnx" else _write_program(scorer, example)


def _write_program(scorer: Scorer, example: Tensor) -> bytes:
    """What torch.export.load reads."""
    made = torch.export.export(scorer, (example,), dynamic_shapes=({0: torch.export.Dim("samples", min=1)},))
    file = io.BytesIO()
    torch.export.save(made, file, extra_files={"about": MAKER})
    return file.getvalue()


def _write_onnx(scorer: Scorer, example: Tensor) -> bytes:
    for name in ("onnxscript", "torch.onnx"):  # which tell about their own insides
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        made = torch.onnx.export(
            scorer, (example,), input_names=["samples"], output_names=["scores"], dynamo=True, verbose=False,
            dynamic_shapes=({0: torch.export.Dim("samples", min=1)},),
        )  # fmt: skip
    except ImportError as error:
        raise InputError(f".onnx needs more packages ({one_line(error)}); pip install 'unskew[onnx]'") from None
    assert made is not None
    whole = made.model_proto  # made anew each time it is asked for
    whole.doc_string = MAKER
    content: bytes = whole.SerializeToString()
    return content
