import numpy as np
import pytest

from data.sources.tiny_files import offline, pixels
from unskew.data.sources.base import sources


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
