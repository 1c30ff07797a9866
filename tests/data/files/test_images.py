import numpy as np
from PIL import Image

from unskew.data.sources import load


def test_sixteen_bit_greys_are_scaled_and_not_clipped(tmp_path):
    for name, value in (("dark", 500), ("bright", 60_000)):
        (tmp_path / "x" / name).mkdir(parents=True)
        for number in range(5):
            pixels = np.full((8, 8), value, np.uint16)
            Image.fromarray(pixels).save(tmp_path / "x" / name / f"{number}.png")
    data = load({"name": "folder", "path": str(tmp_path / "x"), "size": 8, "grey": True})
    values = {data.classes[int(y)]: int(x.max()) for x, y in zip(data.train.x, data.train.y, strict=True)}
    assert values == {"bright": round(60_000 / 257), "dark": round(500 / 257)}
