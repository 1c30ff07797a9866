from data.sources.tiny_files import offline, save_digits_npz


def test_mnist_m_npz(tmp_path):
    save_digits_npz(tmp_path / "mnist_m_4k.npz")
    data = offline("mnist_m", tmp_path)
    assert (len(data.train), len(data.test), data.num_classes, data.shape) == (10, 10, 10, (3, 8, 8))
