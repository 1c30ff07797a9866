"""Data that a program hands over: what is accepted, what is refused in a line, what is said."""

import numpy as np
import pytest
import torch

import unskew
from unskew.data.dataset import Dataset, Samples, is_old, may_be_same, warn_unseen

IMAGES = torch.randint(0, 256, (12, 1, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(12) % 2


def make(x=IMAGES, y=LABELS, test=None, classes=("a", "b"), mean=(0.5,), std=(0.5,), **more):
    return Dataset("d", Samples(x, y), test or Samples(x, y), classes, mean, std, **more)


def test_dataset_checks(refused):
    samples = Samples(torch.zeros(2, 3), torch.tensor([0, 2]))
    refused(lambda: Dataset("d", samples, samples, ("a", "b"), (0.0,), (1.0,)), "0..1", "0..2", "position 1")


BAD = {
    "flat": ({"x": torch.rand(12)}, "[N, features]", "(12,)"),
    "nothing": ({"x": torch.rand(12, 0)}, "[N, features]", "(12, 0)"),
    "int16": ({"x": IMAGES.short()}, "uint8", "int16", ".to(torch.uint8)"),
    "int64": ({"x": IMAGES.long()}, "int64"),
    "bool": ({"x": IMAGES > 3}, "bool"),
    "complex": ({"x": torch.rand(12, 3).to(torch.complex64)}, "complex64"),
    "sparse": ({"x": torch.eye(12).to_sparse()}, "dense"),
    "text": ({"x": "abc"}, "expected inputs as a tensor", "str"),
    "ragged": ({"x": [[1.0], [1.0, 2.0]]}, "rows of equal length"),
    "objects": ({"x": np.array([None] * 12)}, "expected inputs as numbers"),
    "nan": ({"x": torch.zeros(12, 2, 3).index_fill_(0, torch.tensor(7), torch.nan)}, "sample 7 at [0, 0]"),
    "counts": ({"y": LABELS[:3]}, "12 inputs but 3 labels"),
    "no samples": ({"x": IMAGES[:0], "y": LABELS[:0]}, "holds no samples"),
    "float labels": ({"y": LABELS.float()}, "float32", ".long()"),
    "bool labels": ({"y": LABELS.bool()}, "bool"),
    "bool array": ({"y": LABELS.bool().numpy()}, "bool"),
    "int32 labels": ({"y": LABELS.int()}, "int32"),
    "columns": ({"y": LABELS[:, None]}, "(12, 1)", ".flatten()"),
    "negative": ({"y": -LABELS}, "0..1", "-1..0", "position 1"),
    "too large": ({"y": 2 * LABELS}, "0..1, as there are 2 classes", "0..2"),
    "means": ({"mean": (0.5, 0.5)}, "each of 1 channel,"),
    "mean nan": ({"mean": (float("nan"),)}, "mean", "finite"),
    "mean number": ({"mean": 0.5}, "tuple", "got 0.5"),
    "std zero": ({"std": (0.0,)}, "above 0"),
    "std negative": ({"std": (-1.0,)}, "above 0"),
    "std nan": ({"std": (float("nan"),)}, "above 0"),
    "std text": ({"std": ("1",)}, "above 0"),
    "no classes": ({"classes": ()}, "list of names"),
    "classes number": ({"classes": 2}, "list of names", "got 2"),
    "classes text": ({"classes": "ab"}, "list of names"),
    "groups few": ({"groups": torch.zeros(3).long(), "group_names": ("g",)}, "12 samples"),
    "groups high": ({"groups": torch.full((12,), 4), "group_names": ("g",)}, "1 group_names", "4..4"),
    "groups negative": ({"groups": -LABELS}, "from 0 up", "-1..0"),
    "groups float": ({"groups": torch.zeros(12), "group_names": ("g",)}, "float32"),
    "test groups": ({"test_groups": torch.zeros(3).long(), "group_names": ("g",)}, "test_groups"),
    "device": ({"test": Samples(IMAGES.to("meta"), LABELS)}, "one device", "meta", "CPU"),
    "unlike": ({"test": Samples(IMAGES[:, :, :2], LABELS)}, "make them alike"),
    "no test": ({"test": (IMAGES, LABELS)}, "unskew.Samples as test", "tuple", "Samples(x, y)"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_data_is_one_line(name, refused):
    given, *words = BAD[name]
    refused(lambda: make(**given), *words)


def test_a_name_is_text(refused):
    refused(lambda: Dataset(3, *[Samples(IMAGES, LABELS)] * 2, ("a", "b"), (0.5,), (0.5,)), "name", "got 3")


def test_arrays_and_lists_become_tensors():
    data = make(IMAGES.numpy(), LABELS.to(torch.uint8).numpy(), classes=["a", 1], mean=[0.5], std=np.array([0.5]),
                groups=np.zeros(12, int), group_names=["g"])  # fmt: skip
    plain = make(classes=("a", "1"), groups=torch.zeros(12).long(), group_names=("g",))
    assert torch.equal(data.train.x, IMAGES) and torch.equal(data.train.y, LABELS)
    assert (data.classes, data.mean, data.std, data.group_names) == (("a", "1"), (0.5,), (0.5,), ("g",))
    assert data.fingerprint() == plain.fingerprint()
    lists = Samples([[0.5, 1.0]] * 2, [0, 1])
    assert lists.x.dtype == torch.float32 and lists.y.dtype == torch.int64
    backwards = Samples(IMAGES.numpy()[::-1], LABELS.tolist())
    assert torch.equal(backwards.x, IMAGES.flip(0))


def test_inputs_that_require_a_gradient_are_detached():
    assert not make(torch.rand(12, 3, requires_grad=True)).train.x.requires_grad


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.uint8])
def test_volumes_are_used_as_they_are(kind):
    x = torch.randint(0, 256, (12, 2, 2, 3, 3), generator=torch.Generator().manual_seed(1)).to(kind) / 1
    x = x.to(kind)
    mean, std = (0.5, 0.25), (0.5, 1.0)
    result = unskew.run(data=make(x, mean=mean, std=std), split="iid", clients=2, rounds=1)
    assert result.server["model"]["body.1.weight"].shape[1] == 36
    from unskew.data.transforms import normalise

    scale = torch.tensor(std).view(1, 2, 1, 1, 1)
    by_hand = (x / 255 - torch.tensor(mean).view(1, 2, 1, 1, 1)) / scale if kind == torch.uint8 else x.float()
    torch.testing.assert_close(normalise(x, mean, std), by_hand.float())


def test_floats_that_look_like_grey_values_are_said(caplog):
    make(IMAGES.float() / 255), make(IMAGES.flatten(1).float())  # features may have any size
    assert not caplog.text
    make(IMAGES.float())
    assert "floats up to" in caplog.text and "divide them by 255" in caplog.text


def test_classes_that_nobody_can_learn_are_named_once(caplog):
    seen, both = Samples(IMAGES, LABELS * 0), Samples(IMAGES, LABELS)
    data = Dataset("half", seen, both, ("cat", "dog"), (0.5,), (0.5,))
    unskew.run(data=data, split="iid", clients=2, rounds=1)
    assert caplog.text.count("data 'half': no training sample has class dog, but test samples do") == 1
    caplog.clear()
    warn_unseen(Dataset("other", both, seen, ("cat", "dog"), (0.5,), (0.5,)))
    assert not caplog.text


def data(x=None, **changes):
    x = torch.arange(6000, dtype=torch.uint8).view(3000, 2).clone() if x is None else x
    samples = Samples(x, torch.arange(3000) % 2)
    about = {"name": "d", "classes": ("a", "b"), "mean": (0.5,), "std": (0.5,), "groups": torch.arange(3000) % 3}
    return Dataset(train=samples, test=samples, **{**about, **changes})


def test_every_value_is_in_the_fingerprint():
    plain = data().fingerprint()
    assert plain == data(name="e").fingerprint() and plain.startswith("2-")
    for number in (0, 1, 1501, 2999):
        x = data().train.x.clone()
        x[number, 1] ^= 1
        assert data(x).fingerprint() != plain
    others = {"mean": (0.4,), "std": (0.4,), "groups": None, "validation": data().train, "classes": tuple("abc")}
    assert len({plain, *(data(**{key: value}).fingerprint() for key, value in others.items())}) == 6


def test_the_fingerprint_is_found_once_until_the_data_change(monkeypatch):
    given = data()
    plain = given.fingerprint()
    with monkeypatch.context() as patch:
        patch.setattr("unskew.data.dataset.hashlib", None)
        assert given.fingerprint() == plain
    given.train.x[7, 1] ^= 1
    assert given.fingerprint() != plain


def test_fingerprints_of_the_first_version_are_still_understood():
    given, x = data(), data().train.x.clone()
    old = given._sampled_fingerprint
    assert given.has_fingerprint(old) and is_old(old) and not is_old(given.fingerprint()) and not is_old("")
    x[0, 0] ^= 1  # a sample that it looked at
    assert not data(x).has_fingerprint(old)
    assert may_be_same(old, given.fingerprint()) and not may_be_same(old, "0" * 16)
    assert not may_be_same(given.fingerprint(), data(x).fingerprint())


@pytest.mark.parametrize("how", ["images upside down", "two labels exchanged", "some images shuffled"])
def test_samples_that_changed_places_are_other_data(how):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 255, (64, 1, 8, 8), dtype=np.uint8), rng.integers(0, 10, 64)
    samples = unskew.Samples(torch.from_numpy(x), torch.from_numpy(y))
    data = unskew.Dataset("made", samples, samples, classes=tuple("abcdefghij"), mean=(0.5,), std=(0.5,))
    before = data.fingerprint()
    assert data.fingerprint() == before
    if how == "images upside down":
        x[:] = x[:, :, ::-1].copy()
    elif how == "two labels exchanged":
        first, second = 0, int((y != y[0]).argmax())
        y[[first, second]] = y[[second, first]]
    else:
        x[:8] = x[:8][::-1].copy()
    assert data.fingerprint() != before
