import pytest

from data.sources.tiny_files import encoded, offline, pixels, unpack, zip_of
from unskew.data.sources.domainnet import CLASSES, DOMAINS


@pytest.mark.parametrize("packed", [True, False])
def test_domainnet10(tmp_path, packed, refused):
    for domain in DOMAINS:
        names = [f"{domain}/{name}/{k}.jpg" for name in (*CLASSES, "axe") for k in range(3)]
        members = {name: encoded(pixels(70, 50, 3), "JPEG") for name in names}
        if packed:
            zip_of(tmp_path / f"{domain}.zip", members)
        else:
            unpack(members, tmp_path / "domainnet")
        for part, chosen in (("train", (0, 1)), ("test", (2,))):
            lines = [f"{name} 3" for name in names if int(name[-5]) in chosen]
            (tmp_path / f"{domain}_{part}.txt").write_text("\n".join(lines) + "\n")
    data = offline("domainnet10", tmp_path)
    assert (len(data.train), len(data.test), data.shape, data.classes) == (120, 60, (3, 64, 64), CLASSES)
    assert data.groups.bincount().tolist() == [20] * 6 and data.test_groups.bincount().tolist() == [10] * 6
    assert data.group_names == DOMAINS and data.train.y.bincount().tolist() == [12] * 10
    (tmp_path / "real_test.txt").write_text("")
    refused(lambda: offline("domainnet10", tmp_path), "real", "no test images")
