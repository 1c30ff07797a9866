"""The user's own data, good and bad."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import unskew
from small_runs import EVEN, said
from unskew.base import once
from unskew.base.errors import InputError
from unskew.data.sources import load


def image(path, colour, size=(10, 8)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


def test_folder(tmp_path, refused):
    for k in range(10):
        image(tmp_path / "red" / f"{k}.png", (255, 0, 0))
        image(tmp_path / "blue" / f"{k}.jpg", (0, 0, 255))
    (tmp_path / "blue" / "notes.txt").write_text("not an image")
    (tmp_path / "blue" / "lost.png").symlink_to(tmp_path / "nowhere")
    image(tmp_path / "blue" / ".thumbnails" / "0.png", (0, 0, 255))
    data = load(f"folder:{tmp_path}")
    assert (data.classes, data.shape, len(data.train), len(data.test)) == (("blue", "red"), (3, 32, 32), 16, 4)
    assert (data.train.x[data.train.y == 1][:, 0] == 255).all()
    assert load(f"folder('{tmp_path}', size=5, grey=true)").shape == (1, 5, 5)
    (tmp_path / "red" / "broken.png").write_bytes(b"oops")
    refused(lambda: load(f"folder:{tmp_path}"), "red/broken.png", "damaged")
    cut = (tmp_path / "red" / "0.png").read_bytes()[:40]
    (tmp_path / "red" / "broken.png").write_bytes(cut)
    refused(lambda: load(f"folder:{tmp_path}"), "red/broken.png", "damaged")


def test_folder_with_parts(tmp_path, refused):
    for part, count in (("train", 4), ("test", 2), ("val", 1)):
        for name in ("a", "b"):
            for k in range(count):
                image(tmp_path / part / name / f"{k}.png", (k, 0, 0))
    data = load(f"folder:{tmp_path}")
    assert (len(data.train), len(data.test), len(data.validation), data.classes) == (8, 4, 2, ("a", "b"))
    (tmp_path / "train" / "c").mkdir()
    refused(lambda: load(f"folder:{tmp_path}"), tmp_path / "train" / "c", "no images")
    refused(lambda: load(f"folder:{tmp_path / 'nowhere'}"), "nowhere", "does not exist")
    (tmp_path / "empty").mkdir()
    refused(lambda: load(f"folder:{tmp_path / 'empty'}"), "sub-folder per class")


def test_clients_folder(tmp_path):
    for client in ("ann", "bob"):
        for name in ("x", "y") if client == "ann" else ("y", "z"):
            for k in range(5):
                image(tmp_path / client / name / f"{k}.png", (k, 0, 0))
    data = load(f"clients_folder:{tmp_path}")
    assert (data.classes, data.group_names) == (("x", "y", "z"), ("ann", "bob"))
    assert (data.groups.bincount().tolist(), data.test_groups.bincount().tolist()) == ([8, 8], [2, 2])
    assert set(data.train.y[data.groups == 0].tolist()) == {0, 1}


def test_python(tmp_path, refused, monkeypatch):
    file = tmp_path / "mine.py"
    file.write_text(
        "import numpy as np, torch\n"
        "from unskew import Dataset, Samples\n"
        "def four():\n    x, y = np.zeros((6, 4)), np.arange(6) % 3\n    return x, y, x[:3], y[:3]\n"
        "def tensors():\n    return [torch.as_tensor(a) for a in four()]\n"
        "def whole():\n    s = Samples(torch.zeros(2, 4), torch.tensor([0, 1]))\n"
        "    return Dataset('w', s, s, ('a', 'b'), (0.0,), (1.0,))\n"
        "def wrong():\n    return 3\n"
        "def fails():\n    raise RuntimeError('no\\nluck')\n"
        "def more(root):\n    return four()\n"
    )
    assert load(f"python:{file}:four").num_classes == load(f"python:{file}:tensors").num_classes == 3
    assert load(f"python:{file}:whole").name == "w"
    monkeypatch.syspath_prepend(tmp_path)
    assert load("python:mine:four").shape == (4,)
    refused(lambda: load(f"python:{file}:wrong"), "must return", "int")
    refused(lambda: load(f"python:{file}:fails"), "RuntimeError: no luck")
    refused(lambda: load(f"python:{file}:more"), "TypeError", "'root'; it is called with ()")
    refused(lambda: load(f"python:{file}:nothing"), "there is no 'nothing' in", "it has: four")
    refused(lambda: load("python:nowhere.py:f"), "nowhere.py: there is no such file")
    refused(lambda: load("python:no_such_module:f"), "no_such_module")
    refused(lambda: load("python:four"), "file.py:function")
    file.write_text("def broken(:\n")
    refused(lambda: load(f"python:{file}:four"), "SyntaxError")


@pytest.mark.parametrize("data", ["x.npz", "./x.csv", "folder/images", "/somewhere/x.npz"])
def test_a_bare_path_as_data_is_told_its_kind(data):
    with pytest.raises(unskew.InputError, match="looks like a file or folder; say what it is, as in npz"):
        unskew.run("fedavg", data=data, **EVEN)


# ---------------------------------------------------------------------------------------------------- folders of images


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


@pytest.mark.parametrize(
    "folders",
    [("train/a", "train/b"), ("Train/a", "Train/b", "Test/a", "Test/b"), ("training/a", "testing/a"),
     ("train/a", "val/a")],
)  # fmt: skip
def test_parts_are_not_taken_for_classes(tmp_path, folders):
    draw(tmp_path, *folders)
    with pytest.raises(InputError, match="expected 'train' and 'test' side by side, spelt so"):
        load(f"folder(path='{tmp_path}', size=8)")


def test_parts_are_not_taken_for_clients(tmp_path):
    draw(tmp_path, "train/c1/a", "train/c1/b", "test/c1/a")
    with pytest.raises(InputError, match="expected one folder per client"):
        load(f"clients_folder(path='{tmp_path}', size=8)")


def test_a_class_may_be_called_train(tmp_path):
    assert load(f"folder(path='{draw(tmp_path / 'x', 'train', 'car')}', size=8)").classes == ("car", "train")
    found = load(f"clients_folder(path='{draw(tmp_path / 'y', 'c1/a', 'c1/b', 'c2/a')}', size=8)")
    assert found.group_names == ("c1", "c2") and found.classes == ("a", "b")


def test_classes_of_folders_only_are_said(tmp_path, caplog):
    once.warn_once.cache_clear()
    load(f"folder(path='{draw(tmp_path, 'a/x', 'b/y')}', size=8)")
    assert "no class's folder holds images but in folders below it" in said(caplog)


def test_images_of_floats_are_refused(tmp_path):
    with pytest.raises(InputError, match="holds floating-point pixels, whose range is unknown"):
        load(f"folder(path='{draw(tmp_path, 'a', 'b', mode='F')}', size=8)")


@pytest.mark.parametrize("suffix", ["gif", "tif"])
def test_a_file_of_several_pictures_is_refused(suffix, tmp_path):
    for label in "ab":
        (tmp_path / "images" / label).mkdir(parents=True)
        for number in range(10):
            Image.new("L", (8, 8), 20 * number).save(tmp_path / "images" / label / f"{number}.png")
    first, *more = (Image.new("L", (8, 8), grey) for grey in (0, 100, 200))
    first.save(tmp_path / "images" / "a" / f"film.{suffix}", save_all=True, append_images=more)
    with pytest.raises(InputError, match=rf"film\.{suffix}: holds 3 pictures.*one picture a file"):
        unskew.run(data=f"folder:{tmp_path / 'images'}", split="iid", clients=2, rounds=1)
