"""Every official source, from tiny files of the official format."""

import bz2
import gzip
import hashlib
import io
import struct
import tarfile
import zipfile

import numpy as np
import pytest
import scipy.io
import torch
from PIL import Image

from unskew.data.files.finder import Finder
from unskew.data.sources import load
from unskew.data.sources.base import sources
from unskew.data.sources.cifar import HUNDRED, TEN, TWENTY
from unskew.data.sources.image_sets import DOMAIN_CLASSES, DOMAINS
from unskew.data.sources.mnist import FashionMnist, Mnist

RNG = np.random.default_rng(0)


def pixels(*shape):
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def offline(spec, root):
    return load(spec, root, offline=True)


# ------------------------------------------------------------------------------------------------- IDX


def idx(array):
    return b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_idx(folder, train, labels, zipped=True):
    folder.mkdir(parents=True, exist_ok=True)
    for stem, array in (("train-images-idx3", train), ("train-labels-idx1", labels)):
        for name in (stem, stem.replace("train", "t10k")):
            path = folder / f"{name}-ubyte{'.gz' if zipped else ''}"
            path.write_bytes(gzip.compress(idx(array)) if zipped else idx(array))


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("place", ["mnist", "MNIST/raw", "."])
def test_mnist(tmp_path, zipped, place):
    x, y = pixels(12, 28, 28), np.arange(12, dtype=np.uint8) % 10
    write_idx(tmp_path / place, x, y, zipped)
    data = offline("mnist", tmp_path)
    assert torch.equal(data.train.x[:, 0], torch.from_numpy(x)) and data.train.y.tolist() == y.tolist()
    assert (data.mean, data.std, data.shape) == ((0.1307,), (0.3081,), (1, 28, 28))


def test_damaged_idx(tmp_path, refused):
    x, y = pixels(12, 28, 28), np.zeros(12, dtype=np.uint8)
    write_idx(tmp_path / "mnist", x, y)
    images = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    whole = images.read_bytes()
    for broken, words in [
        (whole[:-30], ["again"]),
        (gzip.compress(idx(x)[:-1]), ["9424", "9423"]),
        (b"<html>", ["IDX"]),
        (gzip.compress(b"\0\0\x08\x03\0"), ["expected"]),
        (b"", ["IDX"]),
    ]:
        images.write_bytes(broken)
        refused(lambda: offline("mnist", tmp_path), images, *words)
    images.write_bytes(gzip.compress(idx(x[:11])))
    refused(lambda: offline("mnist", tmp_path), "11 inputs but 12 labels")


def test_files_of_the_sister_set_are_noticed(tmp_path, refused, monkeypatch):
    y = np.arange(12, dtype=np.uint8) % 10
    write_idx(tmp_path, pixels(12, 28, 28), y)
    monkeypatch.setattr(FashionMnist, "sister", ("mnist", hashlib.sha256(y.tobytes()).hexdigest()))
    refused(lambda: offline("fashion_mnist", tmp_path), "of mnist", "fashion_mnist")
    assert Mnist.sister[0] == "fashion_mnist"


# ----------------------------------------------------------------------------------------------- CIFAR


def tar_of(path, members):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def cifar_batches(label_bytes, names, folder):
    return {f"{folder}/{name}": bytes([1] * (label_bytes - 1) + [7]) + pixels(3072).tobytes() for name in names}


def unpack(members, root):
    for name, content in members.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


CIFAR10 = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")


def test_cifar10_packed_and_unpacked(tmp_path):
    members = cifar_batches(1, CIFAR10, "cifar-10-batches-bin")
    for name in ("packed/cifar10", "unpacked"):
        (tmp_path / name).mkdir(parents=True)
    tar_of(tmp_path / "packed/cifar10/cifar-10-binary.tar.gz", members)
    unpack(members, tmp_path / "unpacked")
    one, two = offline("cifar10", tmp_path / "packed"), offline("cifar10", tmp_path / "unpacked")
    assert one.fingerprint() == two.fingerprint()
    assert (len(one.train), len(one.test), one.classes) == (5, 1, TEN)
    first = np.frombuffer(members["cifar-10-batches-bin/data_batch_1.bin"][1:], np.uint8).reshape(3, 32, 32)
    assert np.array_equal(one.train.x[0].numpy(), first) and one.train.y.tolist() == [7] * 5
    assert one.mean == (0.4914, 0.4822, 0.4465)


def test_damaged_cifar(tmp_path, refused):
    members = cifar_batches(1, CIFAR10, "cifar-10-batches-bin")
    archive = tmp_path / "cifar-10-binary.tar.gz"
    tar_of(archive, members)
    whole = archive.read_bytes()
    archive.write_bytes(whole[: len(whole) // 2])
    refused(lambda: offline("cifar10", tmp_path), archive)
    archive.write_bytes(b"not a tar")
    refused(lambda: offline("cifar10", tmp_path), archive, "damaged")
    members["cifar-10-batches-bin/data_batch_2.bin"] += b"x"
    tar_of(archive, members)
    refused(lambda: offline("cifar10", tmp_path), "data_batch_2.bin", "3073")
    del members["cifar-10-batches-bin/data_batch_2.bin"]
    tar_of(archive, members)
    refused(lambda: offline("cifar10", tmp_path), "data_batch_2.bin", "does not")


def test_cifar100(tmp_path):
    tar_of(tmp_path / "cifar-100-binary.tar.gz", cifar_batches(2, ("train.bin", "test.bin"), "cifar-100-binary"))
    fine, coarse = offline("cifar100", tmp_path), offline("cifar100(coarse=true)", tmp_path)
    assert (fine.train.y.tolist(), fine.classes) == ([7], HUNDRED)
    assert (coarse.train.y.tolist(), coarse.classes) == ([1], TWENTY)
    assert (len(HUNDRED), len(set(HUNDRED)), len(TWENTY)) == (100, 100, 20)


def test_cifar_from_npz_and_no_mixing_of_the_two(tmp_path, refused):
    x, y = pixels(20, 32, 32, 3), np.arange(20) % 10
    arrays = {f"{part}_{key}": value for part in ("train", "test") for key, value in {"images": x, "labels": y}.items()}
    np.savez(tmp_path / "cifar100_tiny.npz", **arrays, train_coarse_labels=y, test_coarse_labels=y)
    refused(lambda: offline("cifar10", tmp_path), "cifar-10-binary.tar.gz not found")
    np.savez(tmp_path / "cifar10.npz", **arrays)
    assert np.array_equal(offline("cifar10", tmp_path).train.x.numpy(), x.transpose(0, 3, 1, 2))
    assert offline("cifar100(coarse=true)", tmp_path).num_classes == 20
    np.savez(tmp_path / "cifar10.npz", **(arrays | {"test_labels": y + 5}))
    refused(lambda: offline("cifar10", tmp_path), "14", "out of range")


def test_cifar10_1(tmp_path, refused):
    unpack(cifar_batches(1, CIFAR10, "cifar-10-batches-bin"), tmp_path)
    for version, count in (("v4", 5), ("v6", 4)):
        np.save(tmp_path / f"cifar10.1_{version}_data.npy", pixels(count, 32, 32, 3))
        np.save(tmp_path / f"cifar10.1_{version}_labels.npy", np.arange(count, dtype=np.int32))
    assert len(offline("cifar10_1", tmp_path).test) == 4
    data = offline("cifar10_1(version=v4)", tmp_path)
    assert (len(data.train), len(data.test), data.shape) == (5, 5, (3, 32, 32))
    refused(lambda: offline("cifar10_1(version=v5)", tmp_path), "version")
    (tmp_path / "cifar10.1_v6_data.npy").write_bytes(b"oops")
    refused(lambda: offline("cifar10_1", tmp_path), "cifar10.1_v6_data.npy", "damaged")


# --------------------------------------------------------------------------------- MedMNIST and domains


@pytest.mark.parametrize("name", ["bloodmnist", "organcmnist", "organsmnist", "pathmnist", "tissuemnist"])
def test_medmnist(tmp_path, name, refused):
    (tmp_path / "medmnist").mkdir()
    shape = sources.get(name).about.shape
    size = (28, 28, 3) if shape[0] == 3 else (28, 28)
    arrays = {f"{part}_images": pixels(n, *size) for part, n in (("train", 9), ("val", 3), ("test", 4))}
    labels = {f"{part}_labels": np.arange(n, dtype=np.uint8)[:, None] % 8 for part, n in
              (("train", 9), ("val", 3), ("test", 4))}  # fmt: skip
    np.savez(tmp_path / "medmnist" / f"{name}.npz", **arrays, **labels)
    data = offline(name, tmp_path)
    assert (len(data.train), len(data.validation), len(data.test), data.shape) == (9, 3, 4, shape)
    assert data.num_classes == sources.get(name).about.classes
    assert data.mean == data.std == (0.5,) * shape[0]
    both = offline(f"{name}(use_validation_for_training=true)", tmp_path)
    assert (len(both.train), both.validation) == (12, None)
    np.savez(tmp_path / "medmnist" / f"{name}.npz", **{k: v for k, v in (arrays | labels).items() if "val" not in k})
    refused(lambda: offline(name, tmp_path), "val_images")


def test_svhn(tmp_path, refused):
    x, y = pixels(32, 32, 3, 6), np.array([[1], [10], [2], [9], [10], [3]], dtype=np.uint8)
    for part in ("train", "test"):
        scipy.io.savemat(tmp_path / f"{part}_32x32.mat", {"X": x, "y": y})
    data = offline("svhn", tmp_path)
    assert data.train.y.tolist() == [1, 0, 2, 9, 0, 3]
    assert np.array_equal(data.train.x[4].numpy(), x[..., 4].transpose(2, 0, 1))
    whole = (tmp_path / "test_32x32.mat").read_bytes()
    for broken in (whole[: len(whole) // 2], b"<html>", b""):
        (tmp_path / "test_32x32.mat").write_bytes(broken)
        refused(lambda: offline("svhn", tmp_path), "test_32x32.mat", "damaged")


def test_usps_official_text(tmp_path, refused):
    line = "3 " + " ".join(f"{i + 1}:{-1 + i / 127.5:.4f}" for i in range(256))
    for name in ("usps.bz2", "usps.t.bz2"):
        (tmp_path / name).write_bytes(bz2.compress(f"{line}\n{line}\n".encode()))
    data = offline("usps", tmp_path)
    assert (data.train.y.tolist(), data.shape, data.train.x[0].max().item()) == ([2, 2], (1, 16, 16), 255)
    (tmp_path / "usps.bz2").write_bytes(b"oops")
    refused(lambda: offline("usps", tmp_path), "usps.bz2", "damaged")


@pytest.mark.parametrize(("name", "file"), [("mnist_m", "mnist_m_4k"), ("usps", "usps"), ("svhn", "svhn_6k")])
def test_digit_npz(tmp_path, name, file):
    x, y = pixels(10, 8, 8, 3), np.arange(10)
    np.savez(tmp_path / f"{file}.npz", train_images=x, train_labels=y, test_images=x, test_labels=y)
    data = offline(name, tmp_path)
    assert (len(data.train), len(data.test), data.num_classes, data.shape) == (10, 10, 10, (3, 8, 8))


def test_office(tmp_path, refused):
    arrays = {f"{part}_images": pixels(4, 8, 8, 3) for part in ("train", "test")}
    arrays |= {f"{part}_labels": np.array([0, 1, 0, 1]) for part in ("train", "test")}
    file = tmp_path / "office_caltech10_64.npz"
    np.savez(file, **arrays)
    refused(lambda: offline("office_caltech10", tmp_path), file, "train_domains")
    domains = {"train_domains": np.array([0, 0, 2, 2]), "test_domains": np.array([1, 0, 2, 2])}
    np.savez(file, **arrays, **domains, domain_names=np.array(["a", "b", "c"]), classes=np.array(["x", "y"]))
    data = offline("office_caltech10", tmp_path)
    assert (data.groups.tolist(), data.test_groups.tolist()) == ([0, 0, 2, 2], [1, 0, 2, 2])
    assert (data.group_names, data.classes) == (("a", "b", "c"), ("x", "y"))


# ----------------------------------------------------------------------------------------- image files


def encoded(array, kind="PNG"):
    out = io.BytesIO()
    Image.fromarray(array).save(out, kind)
    return out.getvalue()


def test_cinic10(tmp_path, refused):
    members = {
        f"{part}/{name}/img{i}.png": encoded(pixels(32, 32, 3))
        for part in ("train", "valid", "test")
        for name in TEN
        for i in range(2)
    }
    (tmp_path / "packed").mkdir()
    tar_of(tmp_path / "packed" / "CINIC-10.tar.gz", {f"./{k}": members[k] for k in reversed(members)})
    unpack(members, tmp_path / "unpacked" / "cinic10")
    packed, unpacked = offline("cinic10", tmp_path / "packed"), offline("cinic10", tmp_path / "unpacked")
    assert packed.fingerprint() == unpacked.fingerprint()
    assert (len(packed.train), len(packed.test), packed.validation) == (20, 20, None)
    assert packed.train.y.bincount().tolist() == [2] * 10
    assert len(offline("cinic10(validation=true)", tmp_path / "packed").validation) == 20
    tar_of(tmp_path / "packed" / "CINIC-10.tar.gz", {k: v for k, v in members.items() if "test" not in k})
    refused(lambda: offline("cinic10", tmp_path / "packed"), "no test images")


def tiny_members():
    ids = ("n02", "n01")
    members = {f"train/{i}/images/{i}_{k}.JPEG": encoded(pixels(64, 64, 3), "JPEG") for i in ids for k in range(3)}
    members["train/n01/images/n01_3.JPEG"] = encoded(pixels(64, 64), "JPEG")
    members |= {f"val/images/val_{k}.JPEG": encoded(pixels(64, 64, 3), "JPEG") for k in range(3)}
    listed = (("val_0", "n02"), ("val_1", "n01"), ("val_2", "n99"))
    members["val/val_annotations.txt"] = "".join(f"{k}.JPEG\t{i}\t0\t0\t1\t1\n" for k, i in listed).encode()
    members["wnids.txt"], members["words.txt"] = b"n02\nn01\n", b"n01\tgoldfish, Carassius\nn02\tfrog\n"
    members["test/images/test_0.JPEG"] = encoded(pixels(64, 64, 3), "JPEG")
    return {f"tiny-imagenet-200/{name}": content for name, content in members.items()}


def zip_of(path, members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def test_tiny_imagenet(tmp_path, refused):
    members = tiny_members()
    (tmp_path / "packed").mkdir()
    zip_of(tmp_path / "packed" / "tiny-imagenet-10.zip", members)
    unpack(members, tmp_path / "unpacked")
    packed, unpacked = offline("tiny_imagenet", tmp_path / "packed"), offline("tiny_imagenet", tmp_path / "unpacked")
    assert packed.fingerprint() == unpacked.fingerprint()
    assert (packed.train.y.tolist(), packed.test.y.tolist()) == ([0] * 4 + [1] * 3, [1, 0])
    assert (packed.classes, packed.shape) == (("goldfish", "frog"), (3, 64, 64))
    broken = members | {"tiny-imagenet-200/train/n01/images/n01_1.JPEG": b"\xff\xd8 broken"}
    zip_of(tmp_path / "packed" / "tiny-imagenet-10.zip", broken)
    refused(lambda: offline("tiny_imagenet", tmp_path / "packed"), "n01_1.JPEG", "damaged")
    (tmp_path / "packed" / "tiny-imagenet-10.zip").write_bytes(b"PK\x03\x04 cut")
    refused(lambda: offline("tiny_imagenet", tmp_path / "packed"), "tiny-imagenet-10.zip", "damaged")


@pytest.mark.parametrize("packed", [True, False])
def test_domainnet10(tmp_path, packed, refused):
    for domain in DOMAINS:
        names = [f"{domain}/{name}/{k}.jpg" for name in (*DOMAIN_CLASSES, "axe") for k in range(3)]
        members = {name: encoded(pixels(70, 50, 3), "JPEG") for name in names}
        if packed:
            zip_of(tmp_path / f"{domain}.zip", members)
        else:
            unpack(members, tmp_path / "domainnet")
        for part, chosen in (("train", (0, 1)), ("test", (2,))):
            lines = [f"{name} 3" for name in names if int(name[-5]) in chosen]
            (tmp_path / f"{domain}_{part}.txt").write_text("\n".join(lines) + "\n")
    data = offline("domainnet10", tmp_path)
    assert (len(data.train), len(data.test), data.shape, data.classes) == (120, 60, (3, 64, 64), DOMAIN_CLASSES)
    assert data.groups.bincount().tolist() == [20] * 6 and data.test_groups.bincount().tolist() == [10] * 6
    assert data.group_names == DOMAINS and data.train.y.bincount().tolist() == [12] * 10
    (tmp_path / "real_test.txt").write_text("")
    refused(lambda: offline("domainnet10", tmp_path), "real", "no test images")


# --------------------------------------------------------------------------------------------- listing


@pytest.mark.parametrize("name", list(sources))
def test_every_source_describes_itself(name):
    source = sources.get(name)
    assert source.summary and (source.about.counts or not source.files)
    for needed in source.files:
        assert needed.url == "" or needed.url.startswith("http")
        assert needed.checksum is None or len(needed.checksum) in (len("md5:") + 32, len("sha256:") + 64)
    assert not source.files or Finder(offline=True).locate(name, source.files[0], source.folders) is None


def test_digits_is_fixed():
    data = load("digits")
    assert (len(data.train), len(data.test), data.shape) == (1437, 360, (1, 8, 8))
    assert data.train.x.max() == 255 and data.fingerprint() == "84c7619992822b9a"
    assert (data.test.y.bincount() - 36).abs().max() <= 1
