"""FedBlade's tables: MobileNetV2 and ResNet-18 on CIFAR and Tiny-ImageNet, 20 of 100 clients or all of 20.

Figures are means of the last ten rounds over three seeds; rounds to an accuracy; neural collapse; the bytes of the
prototypes; the time of each loss.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from unskew.data.sources.base import sources
from unskew.models.base import architectures
from unskew.recipes import readers
from unskew.recipes.base import Cell, Computed, Drawn, Found, Keys, Paper, make_run
from unskew.recipes.costs import count_group_bytes, time_loss
from unskew.runs.config import Run

METHODS = {
    "FedAvg": "fedavg", "FedProx": "fedprox(mu=0.01)", "FedLC": "fedlc(tau=10.0)", "FedDecorr": "feddecorr(beta=0.1)",
    "FedRCL": "fedrcl(threshold=0.7, tau=0.1)", "FedProto": "fedproto(form=averaged, lam=1.0)",
    "FedFM": "fedfm(lam=1.0, tau=0.1)", "FedETF": "fedetf", "FedBlade": "fedblade",
}  # fmt: skip
DATA = {
    "CIFAR-10": "cifar10(normalisation=cifar)", "CIFAR-100": "cifar100(normalisation=cifar)",
    "Tiny-ImageNet": "tiny_imagenet(normalisation=cinic)",  # B18: as printed
}  # fmt: skip
MODELS = {"MobileNetV2": "mobilenetv2", "ResNet-18": "resnet18"}
PARTIAL: dict[str, Any] = {
    "model": "mobilenetv2", "clients": 100, "sample": 0.2, "rounds": 200, "augment": "crop_flip",
    "local": {"epochs": 5, "batch": 64, "lr": 0.01, "momentum": 0.9, "weight_decay": 1e-5},
    "evaluation": {"local_test": "none"},
}  # fmt: skip
FULL: dict[str, Any] = {**PARTIAL, "clients": 20, "sample": 1.0, "rounds": 100}


def reduce(run: Run) -> Run:
    """The FedAvg CNN (features of 512, eight times the batch) on 8,000 samples; clients, batch, epochs, rounds stay."""
    part = sources.build({"name": "part", "of": run.data, "train": 8000, "test": 2000})
    return replace(run, data=part, model=architectures.build("fedavg_cnn"))


PAPER = Paper(
    "fedblade", "FedBlade: log-determinant decorrelation and prototype-guided bilateral alignment",
    seeds=(1024, 2025, 4096), cpu=reduce,
    cpu_text="fedavg_cnn for MobileNetV2 and ResNet-18 (features of 512, 8 times the batch of 64; the paper's have "
    "1280 and 512), 8,000 training and 2,000 test samples, so 2 instead of 8 steps an epoch at a client; classes, "
    "clients, cohort, batch, epochs and rounds stay; about 50 minutes a row on one core",
)  # fmt: skip


def run_split(method: str, row: Keys, protocol: dict[str, Any] = PARTIAL, **more: Any) -> Run:
    """A method on Dirichlet(alpha) of the row's data set."""
    data = row.get("dataset") or row["dataset_inferred"]
    return make_run(protocol, method=method, data=DATA[data], split=f"dirichlet(alpha={row['alpha']})", **more)


_METHODS_BY_SPLIT: dict[str, Any] = {"columns": ("dataset", "alpha"), "std": "std"}


@PAPER.table("t1", "fedblade_t1_partial_mobilenetv2", "Table 1: 20 of 100 clients, MobileNetV2", **_METHODS_BY_SPLIT)
def compare_partial(row: Keys) -> Cell:
    """Table 1."""
    return Cell(run_split(METHODS[row["method"]], row), readers.last_ten)


@PAPER.table("t7", "fedblade_t7_full_mobilenetv2", "Table 7: all of 20 clients, MobileNetV2", **_METHODS_BY_SPLIT)
def compare_full(row: Keys) -> Cell:
    """Table 7."""
    return Cell(run_split(METHODS[row["method"]], row, FULL), readers.last_ten)


@PAPER.table("t8", "fedblade_t8_partial_resnet18", "Table 8: 20 of 100 clients, ResNet-18", **_METHODS_BY_SPLIT)
def compare_resnet(row: Keys) -> Cell:
    """Table 8."""
    return Cell(run_split(METHODS[row["method"]], row, model="resnet18"), readers.last_ten)


def count_rounds(row: Keys) -> Cell:
    """Tables 2 and 12 to 17: rounds to an accuracy, and FedAvg's over the method's (recomputed: B19)."""
    run, read = run_split(METHODS[row["method"]], row), readers.rounds_to(float(row["target_accuracy"]))
    if row["value"] == "rounds":
        return Cell(run, read)
    return Cell(run, read, against=run_split("fedavg", row), inverse=True)


_ROUNDS: dict[str, Any] = {
    "columns": ("dataset", "alpha", "target_accuracy"), "values": ("rounds", "speedup"), "unit": "rounds",
    "short": {"target_accuracy": "target"},
}  # fmt: skip
PAPER.table("t2", "fedblade_t2_convergence", "Table 2: rounds to an accuracy, Dirichlet 0.05", **_ROUNDS)(count_rounds)
for _number, _data, _alpha in (
    (12, "CIFAR-100", "0.05"), (13, "CIFAR-100", "0.1"), (14, "CIFAR-100", "0.5"),
    (15, "Tiny-ImageNet", "0.05"), (16, "Tiny-ImageNet", "0.1"), (17, "Tiny-ImageNet", "0.5"),
):  # fmt: skip
    PAPER.table(
        f"t{_number}", f"fedblade_t{_number}_rounds", f"Table {_number}: rounds to an accuracy, {_data}, "
        f"Dirichlet {_alpha}", **_ROUNDS,
    )(count_rounds)  # fmt: skip

COMPONENTS = {
    ("0", "0"): "fedetf", ("1", "0"): "fedblade(pa=false, fa=false)",  # B16
    ("0", "1"): "fedblade(decorrelation=none)", ("1", "1"): "fedblade",
}  # fmt: skip


@PAPER.table(
    "t3", "fedblade_t3_components", "Table 3: LDDecorr and PBA", rows=("lddecorr", "pba"), columns=("dataset", "alpha"),
    std="std",
)  # fmt: skip
def ablate_components(row: Keys) -> Cell:
    """Table 3."""
    return Cell(run_split(COMPONENTS[row["lddecorr"], row["pba"]], row), readers.last_ten)


WITHOUT = {
    "w/o FA": "fedblade(fa=false)", "w/o DF": "fedblade(distribution_factor=false)", "w/o PA": "fedblade(pa=false)",
    "FedBlade": "fedblade",
}  # fmt: skip


@PAPER.table(
    "t4", "fedblade_t4_pba_terms", "Table 4: the terms of PBA, Tiny-ImageNet", rows=("variant",), columns=("alpha",),
    std="std",
)  # fmt: skip
def ablate_terms(row: Keys) -> Cell:
    """Table 4."""
    return Cell(run_split(WITHOUT[row["variant"]], row), readers.last_ten)


@PAPER.table(
    "t5", "fedblade_t5_neural_collapse", "Table 5: neural collapse with and without PBA", unit="", rows=("pba",),
    columns=("dataset", "alpha"), values=("nc1", "nc2"),
)  # fmt: skip
def measure_collapse(row: Keys) -> Cell:
    """Table 5: after the last round; NC1 is the ratio of traces, NC2 the distance of the cosines (B20)."""
    run = run_split(COMPONENTS["1", row["pba"]], row, measure="collapse(every=200)")
    return Cell(run, readers.measured({"nc1": "nc1_trace_ratio", "nc2": "nc2_gram"}[row["value"]]))


@PAPER.table(
    "t9", "fedblade_t9_local_epochs", "Table 9: FedBlade with 1, 5 and 10 local epochs", rows=("epochs",),
    columns=("dataset", "alpha"), std="std",
)  # fmt: skip
def vary_epochs(row: Keys) -> Cell:
    """Table 9."""
    return Cell(run_split("fedblade", row, local={"epochs": int(row["epochs"])}), readers.last_ten)


@PAPER.table(
    "t10", "fedblade_t10_cost_ms", "Table 10: time of each loss", unit="ms", rows=("loss",),
    columns=("dataset", "model"),
    values=("ms_per_iteration",), comparable=False,
)  # fmt: skip
def time_losses(row: Keys) -> Computed:
    """Table 10: value and gradient of one loss on a batch's features, on this machine."""
    run = make_run(PARTIAL, method="fedblade", data=DATA[row["dataset"]], model=MODELS[row["model"]])
    return Computed(lambda scale: time_loss(run, row["loss"], scale))


@PAPER.table(
    "t11", "fedblade_t11_prototype_kb", "Table 11: bytes of the prototypes", unit="KB", rows=("model",),
    columns=("dataset",), values=("kilobytes",),
)  # fmt: skip
def count_prototypes(row: Keys) -> Computed:
    """Table 11: the group `prototypes` of the message that the server really sends, without its flags."""
    run = make_run(PARTIAL, method="fedblade", data=DATA[row["dataset"]], model=MODELS[row["model"]])
    return Computed(lambda scale: count_group_bytes(run, "prototypes", "means") / 1024)


HARD = {"dataset": "CIFAR-100", "alpha": "0.05"}
DECORRELATIONS = {"LDDecorr": "fedblade", "FedDecorr's": "fedblade(decorrelation=feddecorr)"}


def name_in(space: str, figure: str) -> str:
    """How a measure names its figure of a space."""
    return figure if space == "extractor" else f"{space}_{figure}"


def run_hard(methods: Mapping[str, str], **more: Any) -> dict[str, Run]:
    """These methods on CIFAR-100 at Dirichlet 0.05."""
    return {name: run_split(method, HARD, **more) for name, method in methods.items()}


def show_spectrum(name: str, title: str, space: str) -> None:
    """Figs. 2 and 10: the eigenvalues of the features' covariance after the last round, the largest first."""

    def draw(found: Found) -> Drawn:
        lines = {}
        for method, done in found.items():
            values = readers.listed(name_in(space, "spectrum"))(done)
            lines[method] = [(float(place), math.log10(value)) for place, value in enumerate(values, 1) if value > 0]
        return Drawn(lines, "eigenvalue, from the largest", "log10", note="the paper: LDDecorr has the higher tail")

    PAPER.figure(
        name, f"the spectrum of {title}, CIFAR-100, Dirichlet 0.05",
        lambda: run_hard(DECORRELATIONS, measure=f"spectrum(every=1000, space={space})"),
    )(draw)  # fmt: skip


show_spectrum("fig2", "the projector's output", "projector")
show_spectrum("fig10", "the extractor's output (our reading)", "extractor")


@PAPER.figure(
    "fig3", "FedBlade with LDDecorr and with FedDecorr's loss, CIFAR-100, Dirichlet 0.05",
    lambda: run_hard(DECORRELATIONS),
)  # fmt: skip
def draw_decorrelations(found: Found) -> Drawn:
    """Fig. 3: accuracy."""
    lines = {name: readers.curve(done) for name, done in found.items()}
    return Drawn(lines, "round", "test accuracy (%)", note="the paper: LDDecorr learns faster")


def show_rank(name: str, space: str) -> None:
    """Figs. 4 and 5: effective rank of the features' correlations in a space (B6)."""

    def draw(found: Found) -> Drawn:
        lines = {method: readers.curve(done, name_in(space, "rank_correlation")) for method, done in found.items()}
        return Drawn(lines, "round", f"effective rank, {space}", note="the paper: LDDecorr's is higher")

    methods = {**DECORRELATIONS, "none": "fedblade(decorrelation=none)"}
    PAPER.figure(
        name, f"effective rank in the {space}'s output, CIFAR-100, Dirichlet 0.05",
        lambda: run_hard(methods, measure=f"rank(every=20, space={space})"),
    )(draw)  # fmt: skip


show_rank("fig4", "projector")
show_rank("fig5", "extractor")


def vary_option(name: str, title: str, option: str, values: Sequence[float], best: float) -> None:
    """Figs. 6 to 8: accuracy against one option."""

    def draw(found: Found) -> Drawn:
        ticks = tuple(f"{value:g}" for value in values)
        points = readers.in_order(readers.last_ten(found[tick]) for tick in ticks)
        return Drawn({"FedBlade": points}, option, "test accuracy (%)", ticks=ticks, note=f"the paper: best at {best}")

    PAPER.figure(name, title, lambda: run_hard({f"{value:g}": f"fedblade({option}={value})" for value in values}))(draw)


vary_option("fig6", "the strength of LDDecorr", "lambda_ld", (0.001, 0.005, 0.01, 0.05), 0.005)
vary_option("fig7", "the strength of PBA", "gamma", (0.1, 1.0, 2.0, 5.0), 1.0)
vary_option("fig8", "the temperature of PBA", "tau", (0.01, 0.05, 0.1, 0.5), 0.1)
