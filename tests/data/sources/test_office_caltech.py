import numpy as np

from data.sources.tiny_files import offline, pixels


def test_office_caltech10(tmp_path, refused):
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
