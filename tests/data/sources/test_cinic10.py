from data.sources.tiny_files import encoded, offline, pixels, tar_of, unpack
from unskew.data.sources.cifar import TEN


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
