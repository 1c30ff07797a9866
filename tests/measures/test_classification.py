"""Figures beyond accuracy against scikit-learn's, and those that it does not have by hand."""

import itertools
import warnings

import numpy as np
import pytest
import torch
from sklearn import metrics

from unskew.measures.accuracy import class_accuracy
from unskew.measures.classification import BINS, Tally, mean_auc


def make(classes, samples=400, present=None, ties=False, seed=0):
    """Labels and scores [N, C] that lean towards the label."""
    rng = np.random.default_rng(seed)
    y = rng.choice(present if present is not None else np.arange(classes), samples)
    scores = rng.standard_normal((samples, classes)).astype(np.float32)
    scores[np.arange(samples), y] += 1.0
    scores = np.round(scores) if ties else scores
    return torch.from_numpy(y), torch.from_numpy(scores)


def judge(y, scores, parts=1, **options):
    tally = Tally(tuple(map(str, range(scores.shape[1]))), **options)
    for labels, own in zip(y.chunk(parts), scores.chunk(parts), strict=True):
        tally.add(labels, own.argmax(1), own)
    return tally.close()


CASES = {
    "ten classes": make(10), "two classes": make(2), "ties": make(5, ties=True), "two with ties": make(2, ties=True),
    "classes without samples": make(6, present=[0, 2, 5]), "one sample each": make(4, samples=4, present=[0, 1, 2, 3]),
    "few samples": make(20, samples=30, seed=3),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_against_scikit_learn(name):
    y, scores = CASES[name]
    found, labels, predicted = judge(y, scores), y.numpy(), scores.argmax(1).numpy()
    classes, present = np.arange(scores.shape[1]), np.unique(labels)
    assert (found.confusion.counts == metrics.confusion_matrix(labels, predicted, labels=classes)).all()
    wanted = metrics.f1_score(labels, predicted, labels=present, average="macro", zero_division=0)
    assert found.figures["macro_f1"] == pytest.approx(wanted, abs=1e-12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that classes are predicted which have no sample
        balanced = metrics.balanced_accuracy_score(labels, predicted)
    assert found.figures["balanced_accuracy"] == pytest.approx(balanced, abs=1e-12)
    shares = scores.double().softmax(1).numpy()
    areas = [metrics.roc_auc_score(labels == k, shares[:, k]) for k in present]
    assert found.figures["auc"] == pytest.approx(np.mean(areas), abs=1e-12)
    table = metrics.precision_recall_fscore_support(labels, predicted, labels=classes, zero_division=np.nan)
    ours = np.array([[np.nan if v is None else v for v in row[1:]] for row in found.confusion.per_class], float).T
    np.testing.assert_allclose(ours, table, atol=1e-12)


@pytest.mark.parametrize("name", ["ten classes", "two classes"])
def test_the_mean_auc_is_scikit_learn_s_one_against_the_rest(name):
    y, scores = CASES[name]
    shares = scores.double().softmax(1).numpy()
    given = shares if shares.shape[1] > 2 else shares[:, 1]
    wanted = metrics.roc_auc_score(y.numpy(), given, multi_class="ovr", average="macro")
    assert judge(y, scores).figures["auc"] == pytest.approx(wanted, abs=1e-12)


def test_the_accuracies_agree():
    y, scores = CASES["classes without samples"]
    confusion = judge(y, scores).confusion
    right = scores.argmax(1) == y
    assert confusion.accuracy == float(right.double().mean())
    assert [row.recall for row in confusion.per_class] == class_accuracy(y, right, 6)
    assert confusion.per_class[1].support == 0 and confusion.per_class[1].recall is None


def test_calibration_error_by_hand():
    # probabilities 0.6 (right, right), 0.6 (wrong), and 0.9 (right): bins 9 and 14 of 15
    # (3/4) |2/3 - 0.6| + (1/4) |1 - 0.9| = 0.05 + 0.025
    p = torch.tensor([[0.6, 0.4]] * 3 + [[0.9, 0.1]], dtype=torch.float64)
    found = judge(torch.tensor([0, 0, 1, 0]), p.log())
    assert BINS == 15 and found.figures["calibration_error"] == pytest.approx(0.075, abs=1e-9)


def test_calibration_error_bin_by_bin():
    y, scores = CASES["ten classes"]
    sure, predicted = scores.double().softmax(1).max(1)
    edges, error = np.linspace(0, 1, 16), 0.0
    for low, high in itertools.pairwise(edges):
        inside = (sure > low) & (sure <= high)
        if inside.any():
            gap = (predicted[inside] == y[inside]).double().mean() - sure[inside].mean()
            error += float(inside.double().mean() * gap.abs())
    assert judge(y, scores).figures["calibration_error"] == pytest.approx(error, abs=1e-12)


def test_parts_give_the_same_bits_as_the_whole_but_for_sums_of_probabilities():
    y, scores = CASES["ten classes"]
    one, many = judge(y, scores), judge(y, scores, parts=7)
    assert (one.confusion.counts == many.confusion.counts).all()
    assert one.figures.pop("calibration_error") == pytest.approx(many.figures.pop("calibration_error"), abs=1e-12)
    assert one.figures == many.figures


def test_scores_that_are_no_logits_have_neither_auc_nor_calibration():
    figures = judge(*CASES["ties"], probabilities=False).figures
    assert figures["auc"] is None and figures["calibration_error"] is None and figures["macro_f1"] > 0


def test_what_is_not_defined_is_none(monkeypatch):
    y, scores = make(3, present=[1])  # no other class to tell it from
    assert judge(y, scores).figures["auc"] is None
    spoilt = scores.clone()
    spoilt[0] = float("nan")
    figures = judge(y, spoilt).figures
    assert figures["auc"] is None and figures["calibration_error"] is None
    monkeypatch.setattr("unskew.measures.classification.MOST_SCORES", 100)
    assert judge(*CASES["ten classes"], parts=5).figures["auc"] is None


def test_all_equal_scores_are_half_right():
    assert mean_auc(torch.tensor([0, 1, 1, 2]), torch.full((4, 3), 1 / 3)) == 0.5
