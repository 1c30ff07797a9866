from unskew.data.sources import load


def test_digits_is_fixed():
    data = load("digits")
    assert (len(data.train), len(data.test), data.shape) == (1437, 360, (1, 8, 8))
    assert data.train.x.max() == 255 and data.fingerprint() == "2-8fccbc995eaa3c97"
    assert (data.test.y.bincount() - 36).abs().max() <= 1
