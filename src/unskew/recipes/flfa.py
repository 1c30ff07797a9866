"""FLFA's tables: MobileNetV2 on medical images, Fashion-MNIST and CIFAR, ten methods with and without feedback.

"Federated Learning with Feedback Alignment". Figures are means over the last tenth of the rounds, three seeds; the
paper says neither the values of the other methods (F10) nor, but for some tables, which rule chose the layers (F5).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from unskew.data.sources.base import sources
from unskew.recipes import readers
from unskew.recipes.base import Cell, Drawn, Found, Keys, Paper, Runs, make_run
from unskew.runs.config import Run

METHODS = {
    "FedAvg": "fedavg", "FedProx": "fedprox(mu=0.01)", "MOON": "moon(mu=1.0, tau=0.5)", "FedAvgM": "fedavgm(beta=0.9)",
    "FedSOL": "fedsol(rho=2.0, where=head)", "FedRS": "fedrs(alpha=0.5)", "FedLC": "fedlc(tau=1.0)",
    "FedACG": "fedacg(lam=0.85, beta=0.001)", "FedDyn": "feddyn(alpha=0.1)",
}  # fmt: skip
"""Section 7.7 of our sheet: values of the methods' own papers and codes."""
CIFAR = {"rounds": 500, "augment": "crop_flip"}
DATA: dict[str, dict[str, Any]] = {
    "BloodMNIST": {"data": "bloodmnist(normalisation=half)"},
    "OrganCMNIST": {"data": "organcmnist(normalisation=half)"},
    "OrganSMNIST": {"data": "organsmnist(normalisation=half)"}, "PathMNIST": {"data": "pathmnist(normalisation=half)"},
    "FMNIST": {"data": "fashion_mnist"}, "CIFAR-10": {"data": "cifar10(normalisation=cifar)", **CIFAR},
    "CIFAR-100": {"data": "cifar100(normalisation=cifar)", **CIFAR},
    "ImageNet-100": {"data": "imagenet100", "augment": "crop_flip"},  # neither is said: our choice
}  # fmt: skip
PROTOCOL: dict[str, Any] = {
    "model": "mobilenetv2_flfa", "clients": 100, "sample": 0.1, "rounds": 100, "augment": "none",
    "split": "dirichlet_uncapped(alpha=0.3, min_size=10)",
    "local": {"epochs": 5, "batch": 64, "lr": 0.01, "momentum": 0.9, "weight_decay": 1e-3, "lr_decay": 0.998},
    "evaluation": {"local_test": "none"},
}  # fmt: skip


def reduce(run: Run) -> Run:
    """Twenty rounds on at most 12,000 training and 2,000 test samples; the network and its layers stay."""
    part = sources.build({"name": "part", "of": run.data, "train": 12_000, "test": 2_000})
    return replace(run, data=part, rounds=20)


PAPER = Paper(
    "flfa", "Federated Learning with Feedback Alignment", seeds=(0, 1, 2), cpu=reduce,
    cpu_text="20 rounds (of 100 or 500) on at most 12,000 training and 2,000 test samples (BloodMNIST's training part "
    "has as many); network, layers, clients, cohort, epochs, batch and rates stay; 20 to 40 minutes a row on one core",
)  # fmt: skip


def run_on(method: str, dataset: str, flfa: bool, select: str = "auto", n_layers: int = 1, **more: Any) -> Run:
    """A method on a data set, with feedback around it or without."""
    inner = METHODS[method]
    text = f"flfa({inner}, select={select}, n_layers={n_layers})" if flfa else inner
    return make_run(PROTOCOL, method=text, **{**DATA[dataset], **more})


_PAIRS: dict[str, Any] = {"rows": ("method", "flfa"), "columns": ("dataset",), "derived": {"method": "Avg. gain"}}


@PAPER.table(
    "t1", "flfa_t1_main", "Table 1: methods with and without feedback, and their time", **_PAIRS,
    values=("accuracy", "relative_time"),
)  # fmt: skip
def compare_methods(row: Keys) -> Cell:
    """Table 1: accuracy, and the time of local training as a multiple of FedAvg's."""
    run = run_on(row["method"], row["dataset"], row["flfa"] == "1")
    if row["value"] == "accuracy":
        return Cell(run, readers.last_tenth)
    return Cell(run, readers.local_seconds, against=run_on("FedAvg", row["dataset"], False))


@PAPER.table(
    "t2", "flfa_t2_cifar10_1", "Table 2: CIFAR-10.1, trained on CIFAR-10", rows=("version",), columns=("dataset",),
    values=("bp", "flfa"),
)  # fmt: skip
def generalise(row: Keys) -> Cell:
    """Table 2: the mean of the last tenth of the rounds on the new test sets; lowest, as Sec. 5.2 says (F5)."""
    data = f"cifar10_1(version={row['version'].lower()}, normalisation=cifar)"
    run = run_on("FedAvg", "CIFAR-10", row["value"] == "flfa", "lowest", data=data)
    return Cell(run, readers.last_tenth)


def compare_pairs(**more: Any) -> Any:
    """The recipe of a table of methods with and without feedback, with what it changes."""

    def recipe(row: Keys) -> Cell:
        return Cell(run_on(row["method"], row["dataset"], row["flfa"] == "1", **more), readers.last_tenth)

    return recipe


PAPER.table("t3", "flfa_t3_complex", "Table 3: CIFAR-100 and ImageNet-100", **_PAIRS)(compare_pairs())
PAPER.table("t5", "flfa_t5_beta01", "Table 5: Dirichlet 0.1", **_PAIRS)(
    compare_pairs(split="dirichlet_uncapped(alpha=0.1, min_size=10)")
)
PAPER.table("t6", "flfa_t6_resnet50", "Table 6: ResNet-50", **_PAIRS)(compare_pairs(model="resnet50"))
PAPER.table("t7", "flfa_t7_200clients", "Table 7: 200 clients", **_PAIRS)(compare_pairs(clients=200))
PAPER.table("t8", "flfa_t8_15epochs", "Table 8: 15 local epochs", **_PAIRS)(compare_pairs(local={"epochs": 15}))
PAPER.table("t9", "flfa_t9_participation005", "Table 9: 5 % of the clients a round", **_PAIRS)(
    compare_pairs(sample=0.05)
)
PAPER.table("t12", "flfa_t12_feddyn", "Table 12: FedDyn", **_PAIRS)(compare_pairs())

VARIANTS = {
    "BP": "fedavg", "FLFA": "flfa(fedavg, select=lowest)",
    "FLFA_random_B": "flfa(fedavg, select=lowest, feedback=random)",
    "FLFA_no_scaling": "flfa(fedavg, select=lowest, scaling=false)", "DFA": "flfa(fedavg, select=lowest, dfa=true)",
}  # fmt: skip


@PAPER.table("t4", "flfa_t4_ablation", "Table 4: the feedback matrix", rows=("variant",), columns=("dataset",))
def ablate(row: Keys) -> Cell:
    """Table 4: FedAvg, lowest (Sec. 5.4, F5)."""
    return Cell(make_run(PROTOCOL, method=VARIANTS[row["variant"]], **DATA[row["dataset"]]), readers.last_tenth)


def vary_layers(row: Keys) -> Cell:
    """Tables 10 and 11: one, two and three layers with feedback."""
    run = run_on(row["method"], row["dataset"], True, n_layers=int(row["n_fa"]))
    return Cell(run, readers.last_tenth)


_LAYERS: dict[str, Any] = {
    "rows": ("method", "n_fa"), "columns": ("dataset",), "derived": {"method": "Avg. gain"}, "seeds": 1,
    "short": {"n_fa": "N_FA"},
}  # fmt: skip
PAPER.table("t10", "flfa_t10_nfa_part1", "Table 10: layers with feedback, medical images", **_LAYERS)(vary_layers)
PAPER.table("t11", "flfa_t11_nfa_part2", "Table 11: layers with feedback, other data", **_LAYERS)(vary_layers)


def find_stage(layer: str) -> str:
    """The stage of Table 13 that a layer of `mobilenetv2_flfa` belongs to."""
    place = layer.split(".")
    if place[0] == "head":
        return "Final Output"
    return {"stem": "Pre-processing", "last": "Conv1"}.get(place[1], place[1].replace("stage", "Stage "))


@PAPER.table(
    "t13", "flfa_t13_selected_layers", "Table 13: how often a stage is chosen", rows=("stage",),
    values=("lowest_percent", "highest_percent"),
)  # fmt: skip
def count_choices(row: Keys) -> Cell:
    """Table 13: FedAvg on CIFAR-10; the paper does not say which run it is of."""
    rule = row["value"].removesuffix("_percent")
    return Cell(run_on("FedAvg", "CIFAR-10", True, rule), readers.layer_share(find_stage, row["stage"]))


def measure_both(measure: str, *names: str) -> Runs:
    """FedAvg on CIFAR-10 without feedback (BP) and with it (FLFA, lowest), something measured."""
    return lambda: {
        name: run_on("FedAvg", "CIFAR-10", name == "FLFA", "lowest", measure=measure)
        for name in names or ("BP", "FLFA")
    }


@PAPER.figure(
    "fig2", "separability of the features with and without feedback, CIFAR-10", measure_both("separability(every=5)")
)
def draw_separability(found: Found) -> Drawn:
    """Fig. 2: the ratio of distances between and within classes."""
    lines = {name: readers.curve(done, "separability") for name, done in found.items()}
    return Drawn(lines, "round", "inter / intra", note="the paper: FLFA's ratio is about 20 % higher")


@PAPER.figure("fig3", "drift reduction per round, CIFAR-10", measure_both("drift"))
def draw_drift(found: Found) -> Drawn:
    """Fig. 3: H_BP - H_FLFA of two runs, round by round."""
    plain, feedback = (dict(readers.curve(found[name], "drift")) for name in ("BP", "FLFA"))
    line = [(number, plain[number] - feedback[number]) for number in plain if number in feedback]
    return Drawn({"H_BP - H_FLFA": line}, "round", "drift reduction", note="the paper: positive after the first rounds")


@PAPER.figure(
    "fig4", "similarity of the layers' updates in the first round, CIFAR-10", measure_both("similarity", "BP")
)
def draw_similarity(found: Found) -> Drawn:
    """Fig. 4: how many layers have which z."""
    row = found["BP"].rounds[1]
    z = list(row["measures"]["similarity"].values())
    edges = [place / 10 for place in range(11)]
    counts = [(float(place), float(sum(low <= own < low + 0.1 for own in z))) for place, low in enumerate(edges)]
    ticks = tuple(f"{low:.1f}" for low in edges)
    return Drawn({"layers": counts}, "z", "layers", "bar", ticks, "the paper: most layers have low values")
