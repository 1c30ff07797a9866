import numpy as np
import pytest

from unskew.report.split_plot import plot_split, thinned


@pytest.mark.parametrize(("clients", "classes"), [(1, 1), (5, 10), (100, 10), (450, 300)])
@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_pictures_of_every_size(tmp_path, clients, classes, suffix):
    counts = np.random.default_rng(0).integers(0, 20, (clients, classes))
    path = tmp_path / f"split.{suffix}"
    plot_split(counts, [f"class {c}" for c in range(classes)], path, "title")
    assert path.stat().st_size > 5000


def test_picture_of_nothing_and_with_names(tmp_path):
    plot_split(np.zeros((2, 3)), "abc", tmp_path / "split.png", "title", clients=["sketch", "real"])
    assert (tmp_path / "split.png").exists()


def test_thinning_keeps_the_ends():
    assert thinned(3, 200).tolist() == [0, 1, 2]
    assert len(thinned(1000, 200)) == 200
    assert thinned(1000, 200)[[0, -1]].tolist() == [0, 999]
