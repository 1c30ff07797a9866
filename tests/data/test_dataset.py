import torch

from unskew.data.dataset import Dataset, Samples


def test_dataset_checks(refused):
    samples = Samples(torch.zeros(2, 3), torch.tensor([0, 2]))
    refused(lambda: Dataset("d", samples, samples, ("a", "b"), (0.0,), (1.0,)), "0..1", "0..2")
