"""What a command answered, and the files it is tried on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

FILES = {
    "a_file": "hello\n",
    "broken.toml": "rounds = = 3",
    "unknown_key.toml": "round = 3",
    "unknown_section_key.toml": "[local]\nlearning_rate = 1",
    "wrong_type.toml": 'rounds = "many"',
    "section_is_number.toml": "local = 3",
    "method_is_number.toml": "method = 3",
    "method_without_name.toml": "[method]\nmu = 1",
    "plugins_is_number.toml": "plugins = 3",
    "plugins_is_text.toml": 'plugins = "mine.py"',
    "no_run/notes.txt": "my notes",
    "empty_class/a/notes.txt": "no image",
    "not_an_image/a/x.png": "this is no image",
    "broken_run/run.toml": "rounds = = 3",
    "strange_run/run.toml": "rounds = 3\nnosuch = 1",
    "others/table.md": "my own table",
    "fails_to_import.py": "import nosuchmodule\n",
    "no_python.py": "def (\n",
    "exits.py": "import sys\nsys.exit(3)\n",
    "registers_twice.py": (
        "from unskew.core.method import Method, methods\n@methods.register('fedavg')\nclass Mine(Method):\n    'mine'\n"
    ),
    "own.py": """
import numpy as np
import torch
from torch import nn

from unskew import Dataset, Samples


class Net(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.flat, self.hidden, self.fc = nn.Flatten(), nn.Linear(64, 16), nn.Linear(16, classes)

    def forward(self, x):
        return self.fc(torch.relu(self.hidden(self.flat(x))))


class Soft(Net):
    def forward(self, x):
        return super().forward(x).softmax(1)


def three_classes(shape, classes):
    return Net(shape, 3)


def fails(*args):
    raise ValueError("two\\nlines")


def exits(*args):
    raise SystemExit(5)


def number(*args):
    return 42


def features():
    x = np.random.RandomState(0).rand(60, 6).astype(np.float32)
    return x, np.arange(60) % 3, x, np.arange(60) % 3


def ragged():
    return [[1, 2], [3]], [0, 1], [[1, 2], [3]], [0, 1]


def narrow_test():
    x, y, _, _ = features()
    return x, y, x[:, :5], y


def wrong_mean():
    samples = Samples(torch.zeros(60, 1, 8, 8, dtype=torch.uint8), torch.arange(60) % 3)
    return Dataset("grey", samples, samples, ("a", "b", "c"), (0.5,) * 3, (0.5,) * 3)


not_a_function = 3
""",
}


def write_arrays(folder: Path) -> None:
    """Good and bad .npz files of 8x8 grey images in four classes."""
    images = np.random.RandomState(0).randint(0, 255, (40, 8, 8)).astype(np.uint8)
    labels = np.arange(40) % 4
    parts = {"train_images": images, "train_labels": labels, "test_images": images, "test_labels": labels}
    save = {
        "good": {"images": images, "labels": labels},
        "nan_labels": {"images": images, "labels": np.where(labels == 1, np.nan, labels)},
        "negative_labels": {"images": images, "labels": labels - 1},
        "gap": {"images": images, "labels": np.where(labels == 2, 3, labels)},
        "few_classes": {"images": images, "labels": labels, "classes": np.array(["a", "b"])},
        "classes_is_number": {"images": images, "labels": labels, "classes": np.int64(4)},
        "lengths": {"images": images, "labels": labels[:30]},
        "nan_inputs": {"images": np.full((40, 6), np.nan, np.float32), "labels": labels},
        "no_samples": {"images": images[:0], "labels": labels[:0]},
        "no_arrays": {"something": images},
        "pickled": {"images": np.array([{}, 1], dtype=object), "labels": labels[:2]},
        "hospitals": {**parts, "train_clients": np.arange(40) // 10},
        "domains": {**parts, "train_domains": np.arange(40) // 14},
    }
    for name, arrays in save.items():
        np.savez(folder / f"{name}.npz", **arrays)
    whole = (folder / "good.npz").read_bytes()
    (folder / "truncated.npz").write_bytes(whole[: len(whole) // 2])
    (folder / "flipped.npz").write_bytes(whole[:100] + bytes(64) + whole[164:])


def write_images(folder: Path, clients: tuple[str, ...] = ("",)) -> None:
    """Two classes of ten grey images, once or once for each client."""
    random = np.random.RandomState(0)
    for client in clients:
        for number, label in enumerate(("cat", "dog")):
            place = folder / client / label
            place.mkdir(parents=True)
            for index in range(10):
                pixels = random.randint(100 * number, 100 * number + 100, (8, 8)).astype(np.uint8)
                Image.fromarray(pixels).save(place / f"{index}.png")


@dataclass(frozen=True)
class Said:
    """What a command answered."""

    code: int
    out: str
    err: str


Call = Callable[[str], Said]


def contents(folder: Path) -> dict[str, bytes | None]:
    """Every file below a folder, and every folder."""
    found = sorted(path for path in folder.rglob("*") if "__pycache__" not in path.parts)
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in found}


def assert_refused(said: Said, text: str) -> None:
    """One line on standard error that holds the text, nothing on standard output, exit code 2."""
    assert "Traceback" not in said.err
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1 and said.err.endswith("\n")
    assert text in said.err
    assert said.out == ""
    assert said.code == 2
