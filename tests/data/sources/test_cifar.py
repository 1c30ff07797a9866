import numpy as np

from data.sources.tiny_files import offline, pixels, tar_of, unpack
from unskew.data.sources.cifar import HUNDRED, TEN, TWENTY

CIFAR10 = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")


def cifar_batches(label_bytes, names, folder):
    return {f"{folder}/{name}": bytes([1] * (label_bytes - 1) + [7]) + pixels(3072).tobytes() for name in names}


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
