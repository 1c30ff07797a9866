"""The user's own data, good and bad."""

from PIL import Image

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
    )
    assert load(f"python:{file}:four").num_classes == load(f"python:{file}:tensors").num_classes == 3
    assert load(f"python:{file}:whole").name == "w"
    monkeypatch.syspath_prepend(tmp_path)
    assert load("python:mine:four").shape == (4,)
    refused(lambda: load(f"python:{file}:wrong"), "must return", "int")
    refused(lambda: load(f"python:{file}:fails"), "RuntimeError: no luck")
    refused(lambda: load(f"python:{file}:nothing"), "there is no 'nothing' in", "it has: four")
    refused(lambda: load("python:nowhere.py:f"), "nowhere.py: there is no such file")
    refused(lambda: load("python:no_such_module:f"), "no_such_module")
    refused(lambda: load("python:four"), "file.py:function")
    file.write_text("def broken(:\n")
    refused(lambda: load(f"python:{file}:four"), "SyntaxError")
