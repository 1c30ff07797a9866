"""What a seventh trial by a newcomer found: dropout in the first pass, late faults, folders taken for classes."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import unskew
from small_runs import SMALL, equal, play, register, said
from unskew.base import once
from unskew.base.errors import InputError

NUMBERS = itertools.count()


def make(kind, base, **body):
    name = f"test_eighth_{next(NUMBERS)}"
    register(kind, name, base, **body)
    return name


# ------------------------------------------------------------------------------------------------ dropout


def dropping():
    torch.manual_seed(0)
    layers = nn.Flatten(), nn.Linear(64, 16), nn.Dropout(0.3), nn.ReLU(), nn.Linear(16, 10)
    return {"model": nn.Sequential(*layers), "head": "4", "lr": 0.1, "local_test": "holdout"}


@pytest.mark.parametrize("method", ["fedas", "flfa(fedas)", "features first"])
def test_masks_are_the_same_in_every_process(method, tmp_path):
    if method == "features first":
        method = make("methods", unskew.Method, start=lambda self, c: _look_at_features(c))
    net = dropping()
    serial = play(method=method, **net)
    assert equal(serial, play(method=method, executor="pool", workers=2, **net))

    def stop(row):
        if row["round"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play(method=method, out=tmp_path / "run", checkpoint_every=1, watch=stop, **net)
    assert equal(serial, unskew.resume(tmp_path / "run", model=net["model"], head="4"))


def _look_at_features(c):
    for batch in c.batches():
        c.features(c.received["model"], batch.x)
    return c.received["model"]


# --------------------------------------------------------------------------------------------------- wires

LATE = {
    "must give back what encode got": lambda value, late: value[:1] if late else value,
    "must give back what encode got, expected .* float32, got .* float16": lambda v, late: v.half() if late else v,
    "must give back what encode got, expected .*, got nothing": lambda value, late: None if late else value,
}


# -------------------------------------------------------------------------------------------------- stacked


# ----------------------------------------------------------------------------------------------------- data


def draw(root, *folders, mode=None):
    for folder in folders:
        place = Path(root, folder)
        place.mkdir(parents=True)
        for number in range(6):
            pixels = np.random.RandomState(number).randint(0, 255, (8, 8, 3)).astype(np.uint8)
            image = (
                Image.fromarray(pixels) if mode is None else Image.fromarray(pixels[..., 0].astype(np.float32) / 255)
            )
            image.save(place / f"{number}.{'png' if mode is None else 'tiff'}")
    return root


WIDE = {
    "between 1.7e\\+09 and 1.7\\d*e?.*, which float32 hardly tells apart; subtract": 1.7e9 + np.linspace(0, 60, 200),
    "which float32 hardly tells apart; subtract": 1e-60 * np.arange(200),
    "do not fit into float32; scale them": 1e300 * np.arange(200),
}


# ------------------------------------------------------------------------------------------- what says nothing


def test_nobody_who_trains_is_said(caplog):
    once.warn_once.cache_clear()
    digits = unskew.load("digits")
    few = unskew.Dataset(
        "few", digits.train.take(torch.arange(4)), digits.test, digits.classes, digits.mean, digits.std
    )
    play(data=few, clients=4, split="ranges", model="cnn8(norm=batch)", local_test="none", rounds=1)
    assert "no client takes a step: all its batches have one sample" in said(caplog)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"method": "fedper", "validation": 0.2}, "validation = 0.2 holds out samples that nobody uses"),
        ({"lr": 0.1, "lr_decay": 1e-20, "rounds": 3}, "falls to 1e-41 by the last round, where it changes no weight"),
    ],
)
def test_what_does_nothing_is_said(options, line, caplog):
    once.warn_once.cache_clear()
    play(**options)
    assert line in said(caplog)


def test_one_class_is_said(caplog):
    once.warn_once.cache_clear()
    x = torch.rand(40, 3)
    ones = unskew.Dataset(
        "ones",
        unskew.Samples(x, torch.zeros(40).long()),
        unskew.Samples(x, torch.zeros(40).long()),
        ("a",),
        (0.0,),
        (1.0,),
    )
    play(data=ones)
    assert "data 'ones' have one class only (a), so that every model is right" in said(caplog)


@pytest.mark.parametrize(
    ("key", "value"), [("clients", 99), ("train_samples", 5), ("split_hash", "x"), ("measures", {})]
)
def test_an_edited_summary_is_noticed(tmp_path, key, value):
    unskew.run(**{**SMALL, "out": tmp_path / "run", "measure": ["drift"]})
    place = tmp_path / "run" / "summary.json"
    summary = json.loads(place.read_text())
    assert summary[key] != value
    place.write_text(json.dumps({**summary, key: value}))
    with pytest.raises(InputError, match=r"summary.json was edited|summary.json"):
        unskew.resume(tmp_path / "run")
    place.write_text(json.dumps({**summary, "seconds": {**summary["seconds"], "clients": 1.0}}))
    unskew.resume(tmp_path / "run")
