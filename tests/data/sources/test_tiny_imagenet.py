from data.sources.tiny_files import encoded, offline, pixels, unpack, zip_of


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
