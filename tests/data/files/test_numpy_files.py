"""An .npz as a data set, good and bad."""

import numpy as np
import pytest
import torch

import unskew
from small_runs import play, said
from unskew.base import once
from unskew.base.errors import InputError
from unskew.data.sources import load

RNG = np.random.default_rng(0)
Y = np.arange(20) % 4


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
    assert data.train.x.equal(load(npz(images=x, labels=y)).train.x)
    quarter = load({"name": "npz", "path": npz(images=x, labels=y)[4:], "test": 0.25})
    assert len(quarter.test) == 10


def test_npz_groups_and_classes(npz, refused):
    data = load(npz(**arrays(train_domains=np.arange(20) % 2, classes=np.array(list("abcdef")))))
    assert data.group_names == ("0", "1") and data.classes == tuple("abcdef") and data.test_groups is None
    refused(lambda: load(npz(**arrays(train_clients=np.arange(3)))), "mine.npz", "20 samples")
    refused(lambda: load(npz(**arrays(train_clients=np.arange(20), client_names=np.array(["a"])))), "do not index")


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


@pytest.mark.parametrize("kind", [np.uint8, np.float32])
def test_npz_volumes_are_refused_with_the_shapes_that_are_known(npz, refused, kind):
    x = RNG.integers(0, 256, (20, 2, 3, 4, 1)).astype(kind)
    refused(lambda: load(npz(**arrays(x))), "[N, H, W, C] or [N, C, H, W]", "(20, 2, 3, 4, 1)", "as a Dataset")


def test_npz_classes_that_only_the_test_has_are_said(npz, caplog):
    from unskew.runs.building import prepare_data
    from unskew.runs.config import from_table

    content = {**arrays(), "train_labels": np.arange(20) % 3}
    prepare_data(from_table({"data": npz(**content)}))
    assert "no training sample has class 3" in caplog.text


# --------------------------------------------------------------------------------------------------------- two meanings


def images_and_labels(n=40):
    rng = np.random.RandomState(0)
    return rng.randint(0, 255, (n, 8, 8)).astype(np.uint8), np.arange(n) % 4


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("train_images", "train_labels", "test_images", "test_labels"), ("x_train", "y_train", "x_test", "y_test")),
        (("images", "labels"), ("x", "y")),
        (("train_images", "train_labels", "test_images", "test_labels"), ("images", "labels")),
    ],
)
def test_an_npz_with_two_layouts_is_refused(first, second, tmp_path):
    held = {name: images_and_labels()["label" in name or name[0] == "y"] for name in (*first, *second)}
    np.savez(tmp_path / "two.npz", **held)
    with pytest.raises(InputError, match=f"holds '{first[0]}' and '{second[0]}'.*keep one"):
        unskew.run(data=f"npz:{tmp_path / 'two.npz'}", split="iid", clients=2, rounds=1)


def test_an_npz_with_clients_and_domains_is_refused(tmp_path):
    x, y = images_and_labels()
    np.savez(tmp_path / "both.npz", images=x, labels=y, clients=np.arange(40) % 5, domains=np.arange(40) % 3)
    with pytest.raises(InputError, match=r"holds 'clients' and 'domains'.*keep one"):
        unskew.run(data=f"npz:{tmp_path / 'both.npz'}", split="domain", rounds=1)


def test_a_group_without_a_name_is_refused(tmp_path):
    x, y = images_and_labels()
    parts = {"train_images": x, "train_labels": y, "test_images": x, "test_labels": y}
    groups = np.where(np.arange(40) == 7, np.nan, np.arange(40) % 2)
    np.savez(tmp_path / "nan.npz", **parts, train_clients=groups)
    with pytest.raises(InputError, match="group ids must be finite, got nan at position 7"):
        unskew.run(data=f"npz:{tmp_path / 'nan.npz'}", split="natural", rounds=1)


def test_a_share_of_test_samples_that_does_nothing_is_named(tmp_path, caplog):
    once.warn_once.cache_clear()
    x, y = images_and_labels()
    np.savez(tmp_path / "own.npz", train_images=x, train_labels=y, test_images=x, test_labels=y)
    play(data=f"npz(path='{tmp_path / 'own.npz'}', test=0.3)", rounds=1)
    assert "brings test samples of its own, so test = 0.3 does nothing" in said(caplog)


# ----------------------------------------------------------------------------------------------------- single precision

WIDE = {
    "between 1.7e\\+09 and 1.7\\d*e?.*, which float32 hardly tells apart; subtract": 1.7e9 + np.linspace(0, 60, 200),
    "which float32 hardly tells apart; subtract": 1e-60 * np.arange(200),
    "do not fit into float32; scale them": 1e300 * np.arange(200),
}


@pytest.mark.parametrize("line", WIDE)
def test_features_that_float32_cannot_hold_are_refused(line, tmp_path):
    np.savez(tmp_path / "q.npz", images=np.stack([np.arange(200.0), WIDE[line]], 1), labels=np.arange(200) % 4)
    with pytest.raises(InputError, match=line):
        load(f"npz:{tmp_path / 'q.npz'}")


def test_features_that_are_rounded_are_said(tmp_path, caplog):
    np.savez(tmp_path / "q.npz", images=(1.7e9 + np.linspace(0, 5000, 200))[:, None], labels=np.arange(200) % 4)
    load(f"npz:{tmp_path / 'q.npz'}")
    assert "hardly tells apart (about 24 steps)" in said(caplog)
