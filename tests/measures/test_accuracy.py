"""Accuracy from the scores of single samples, by hand."""

import torch

from unskew.measures.accuracy import accuracy_and_loss, class_accuracy, over_clients


def test_means_over_samples():
    right, loss = torch.tensor([True, False, True, True]), torch.tensor([0.0, 3.0, 1.0, 2.0])
    assert accuracy_and_loss(right, loss) == {"accuracy": 0.75, "loss": 1.5}


def test_a_class_without_samples_has_no_accuracy():
    labels, right = torch.tensor([0, 0, 2, 2, 2]), torch.tensor([True, False, True, True, True])
    assert class_accuracy(labels, right, 4) == [0.5, None, 1.0, None]


def test_pooled_and_mean_differ_by_the_sizes():
    figures = over_clients([1.0, 0.5], [30, 10])
    assert figures == {
        "clients_tested": 2, "pooled": 35 / 40, "mean": 0.75, "std": 0.125**0.5, "worst_decile": 0.5, "worst": 0.5,
    }  # fmt: skip


def test_one_client_has_no_spread_and_none_no_figures():
    assert over_clients([0.5], [3])["std"] is None
    assert over_clients([], []) == {"clients_tested": 0}
