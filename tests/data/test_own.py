"""The user's own data, good and bad."""

import numpy as np
import pytest
import torch
from PIL import Image

from unskew.data.dataset import Dataset, Samples
from unskew.data.files.arrays import stratified
from unskew.data.files.decoded_cache import cached
from unskew.data.sources import load

RNG = np.random.default_rng(0)


def arrays(x=None, y=None, **more):
    x = RNG.integers(0, 256, (20, 6, 6), dtype=np.uint8) if x is None else x
    y = np.arange(20) % 4 if y is None else y
    return {"train_images": x, "train_labels": y, "test_images": x, "test_labels": y} | more


@pytest.fixture
def npz(tmp_path):
    def save(**content):
        np.savez(tmp_path / "mine.npz", **content)
        return f"npz:{tmp_path / 'mine.npz'}"

    return save


@pytest.mark.parametrize(
    ("shape", "expected"), [((20, 6, 5), (1, 6, 5)), ((20, 6, 5, 3), (3, 6, 5)), ((20, 3, 6, 5), (3, 6, 5))]
)
@pytest.mark.parametrize("kind", [np.uint8, np.int64])
def test_npz_images(npz, shape, expected, kind):
    x = RNG.integers(0, 256, shape).astype(kind)
    data = load(npz(**arrays(x)))
    assert (data.shape, data.train.x.dtype, data.name) == (expected, torch.uint8, "mine.npz")
    assert (data.mean, data.std) == ((0.5,) * expected[0], (0.5,) * expected[0])
    assert data.train.x[3, 0, 2, 1] == (x[3, 0, 2, 1] if shape[1] == 3 else x[3, 2, 1].reshape(-1)[0])


def test_npz_features_and_other_names(npz):
    x, y = RNG.normal(size=(20, 7)), (np.arange(20) % 4).astype(float)[:, None]
    data = load(npz(x_train=x, y_train=y, x_test=x[:3], y_test=y[:3]))
    assert data.train.x.dtype == torch.float32 and data.shape == (7,)
    assert (data.mean, data.std, data.train.y.tolist()[:5]) == ((0.0,), (1.0,), [0, 1, 2, 3, 0])


def test_npz_splits_itself_and_keeps_clients(npz):
    x, y = RNG.normal(size=(40, 3)), np.arange(40) % 4
    clients = np.array(["b", "a"])[np.arange(40) % 2]
    data = load(npz(images=x, labels=y, clients=clients))
    assert (len(data.train), len(data.test)) == (32, 8) and data.test.y.bincount().tolist() == [2] * 4
    assert data.group_names == ("a", "b") and len(data.groups) == 32 and len(data.test_groups) == 8
    assert data.groups.tolist() == (1 - data.train.y % 2).tolist()
    assert data.fingerprint() == load(npz(images=x, labels=y)).fingerprint()
    quarter = load({"name": "npz", "path": npz(images=x, labels=y)[4:], "test": 0.25})
    assert len(quarter.test) == 10


def test_npz_groups_and_classes(npz, refused):
    data = load(npz(**arrays(train_domains=np.arange(20) % 2, classes=np.array(list("abcdef")))))
    assert data.group_names == ("0", "1") and data.classes == tuple("abcdef") and data.test_groups is None
    refused(lambda: load(npz(**arrays(train_clients=np.arange(3)))), "mine.npz", "20 samples")
    refused(lambda: load(npz(**arrays(train_clients=np.arange(20), client_names=np.array(["a"])))), "do not index")


Y = np.arange(20) % 4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"y": np.where(Y == 3, np.nan, Y)}, ["nan", "position 3"]),
        ({"y": Y + 0.5}, ["0.5"]),
        ({"y": Y - 1}, ["-1", "position 0"]),
        ({"y": Y * 2}, ["1 never occurs"]),
        ({"y": Y.astype(str)}, ["class numbers"]),
        ({"y": Y[:, None] * np.ones((1, 2))}, ["one label per sample"]),
        ({"y": Y[:7]}, ["20 inputs but 7 labels"]),
        ({"y": Y.astype(object)}, ["object array"]),
        ({"x": np.array(["a"] * 20)}, ["numbers"]),
        ({"x": np.zeros(20)}, ["(20,)"]),
        ({"x": np.zeros((20, 5, 5, 5), np.uint8)}, ["(20, 5, 5, 5)"]),
        ({"x": np.full((20, 5, 5), 300)}, ["300"]),
        ({"x": np.full((20, 5), np.inf)}, ["infinite"]),
        ({"classes": np.array(["a", "b"])}, ["out of range", "2 classes"]),
        ({"test_images": np.zeros((20, 9, 9), np.uint8)}, ["make them alike"]),
    ],
)
def test_bad_npz(npz, change, words, refused):
    spec = npz(**arrays(**change))
    refused(lambda: load(spec), "mine.npz", *words)


def test_damaged_npz(npz, tmp_path, refused):
    refused(lambda: load(npz(train_images=np.zeros((2, 3)))), "train_labels", "train_images")
    refused(lambda: load(npz(a=np.zeros(3))), "images and labels", "got a")
    refused(lambda: load(f"npz:{tmp_path / 'none.npz'}"), "none.npz", "does not exist")
    file = tmp_path / "mine.npz"
    npz(**arrays())
    whole = file.read_bytes()
    for broken in (whole[:-50], whole[: len(whole) // 2], b"", b"hello", whole[:300] + b"\0" * 50 + whole[350:]):
        file.write_bytes(broken)
        refused(lambda: load(f"npz:{file}"), file, "damaged")
    refused(lambda: load("npz"), "npz.path is missing")
    refused(lambda: load(f"npz('{file}', test=1.5)"), "npz.test")


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
    refused(lambda: load(f"python:{file}:nothing"), "no function 'nothing'")
    refused(lambda: load("python:nowhere.py:f"), "nowhere.py", "does not exist")
    refused(lambda: load("python:no_such_module:f"), "no_such_module")
    refused(lambda: load("python:four"), "file.py:function")
    file.write_text("def broken(:\n")
    refused(lambda: load(f"python:{file}:four"), "SyntaxError")


def test_source_object_and_unknown_name(refused):
    refused(lambda: load("mnits"), "mnist")
    refused(lambda: load("mnist(size=3)"), "size")


def test_stratified():
    y = np.array([0] * 50 + [1] * 5 + [2])
    train, test = stratified(y, 0.2)
    assert sorted([*train.tolist(), *test.tolist()]) == list(range(56))
    assert np.bincount(y[test.numpy()], minlength=3).tolist() == [11, 1, 0]
    assert torch.equal(test, stratified(y, 0.2)[1])


def test_decoded_cache(tmp_path, monkeypatch, caplog):
    file, calls = tmp_path / "a", []

    def decode():
        calls.append(1)
        return {"x": np.arange(3)}

    file.write_text("one")
    assert cached(file, "v", decode)["x"].tolist() == cached(file, "v", decode)["x"].tolist() == [0, 1, 2]
    assert len(calls) == 1
    cached(file, "w", decode)
    file.write_text("other")
    cached(file, "v", decode)
    assert len(calls) == 3
    monkeypatch.setenv("UNSKEW_CACHE", str(file / "not a folder"))
    assert cached(file, "v", decode)["x"].tolist() == [0, 1, 2]


def test_damaged_cache_is_decoded_again(tmp_path, monkeypatch):
    monkeypatch.setenv("UNSKEW_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "a"
    file.write_text("one")
    cached(file, "v", lambda: {"x": np.arange(3)})
    (stored,) = (tmp_path / "cache" / "decoded").iterdir()
    stored.write_bytes(b"oops")
    assert cached(file, "v", lambda: {"x": np.arange(4)})["x"].tolist() == [0, 1, 2, 3]


def test_dataset_checks(refused):
    samples = Samples(torch.zeros(2, 3), torch.tensor([0, 2]))
    refused(lambda: Dataset("d", samples, samples, ("a", "b"), (0.0,), (1.0,)), "0..1", "0..2")


def test_sixteen_bit_greys_are_scaled_and_not_clipped(tmp_path):
    for name, value in (("dark", 500), ("bright", 60_000)):
        (tmp_path / "x" / name).mkdir(parents=True)
        for number in range(5):
            pixels = np.full((8, 8), value, np.uint16)
            Image.fromarray(pixels).save(tmp_path / "x" / name / f"{number}.png")
    data = load({"name": "folder", "path": str(tmp_path / "x"), "size": 8, "grey": True})
    values = {data.classes[int(y)]: int(x.max()) for x, y in zip(data.train.x, data.train.y, strict=True)}
    assert values == {"bright": round(60_000 / 257), "dark": round(500 / 257)}
