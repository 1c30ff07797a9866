"""FedAF's tables: ten clients of CIFAR and Fashion-MNIST under strong label skew, six domains of DomainNet.

Wang, Fu, et al., "An Aggregation-Free Federated Learning for Tackling Data Heterogeneity", CVPR 2024. Figures are those
of the best of 20 rounds (10 on DomainNet), over three seeds; Table 7 counts bytes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from unskew.base.registry import construct
from unskew.models.base import architectures
from unskew.recipes import readers
from unskew.recipes.base import Cell, Drawn, Found, Keys, Paper, make_run
from unskew.runs.config import Run

DATA = {
    "FMNIST": "fashion_mnist", "CIFAR-10": "cifar10(normalisation=cifar)", "CIFAR-100": "cifar100(normalisation=cifar)",
    "DomainNet": "domainnet10",
}  # fmt: skip
VALUES = {  # section 6.5
    "CIFAR-10": "image_lr=1.0, lambda_loc=0.0001, lambda_glob=0.01",
    "CIFAR-100": "image_lr=0.1, lambda_loc=0.0001, lambda_glob=0.01",
    "FMNIST": "image_lr=0.2, lambda_loc=0.001, lambda_glob=2.0",
    "DomainNet": "image_lr=1.0, lambda_loc=0.01, lambda_glob=0.1",
}
METHODS = {
    "FedAvg": "fedavg", "FedProx": "fedprox(mu=0.001)", "FedBN": "fedbn", "MOON": "moon(mu=1.0, tau=0.5)",
    "FedDyn": "feddyn(alpha=0.01)", "FedGen": "fedgen", "FedDM": "feddm(ipc=50, min_class=ipc, image_lr=1.0)",
}  # fmt: skip
PROTOCOL: dict[str, Any] = {
    "model": "convnet3", "clients": 10, "sample": 1.0, "rounds": 20, "augment": "none",
    "local": {"epochs": 10, "batch": 64, "lr": 0.01, "momentum": 0.9, "weight_decay": 0.0},
    "evaluation": {"local_test": "none"},
}  # fmt: skip
RESNET = "resnet18_imagenet"  # E12


def fedaf(dataset: str, **more: Any) -> str:
    """FedAF with the values of a data set; as in its tables, only classes with IPC samples are condensed (E17)."""
    options = {"ipc": 50, "gamma": 0.9, **more}
    return f"fedaf({VALUES[dataset]}, min_class=ipc, {', '.join(f'{key}={value}' for key, value in options.items())})"


def reduce(run: Run) -> Run:
    """A narrower network; three rounds where clients condense, one with ResNet-18."""
    large = run.model is not None and run.model.name == RESNET
    model = run.model if large else architectures.build("convnet3(width=32)")
    condenses = run.method.name in ("fedaf", "feddm")
    return replace(run, model=model, rounds=min(run.rounds, 3) if condenses and not large else run.rounds)


PAPER = Paper(
    "fedaf", "An Aggregation-Free Federated Learning for Tackling Data Heterogeneity (CVPR 2024)", seeds=(0, 1, 2),
    cpu=reduce,
    cpu_text="convnet3(width=32) for ConvNet of width 128, and three rounds of FedDM and FedAF (the paper has FedAF at "
    "60 % after 3 rounds, FedDM after 15); steps, IPC, server's epochs, clients, split stay; ResNet-18 is not reduced",
)  # fmt: skip


def run_on(method: str, dataset: str, alpha: str, **more: Any) -> Cell:
    """A method on Dirichlet(alpha); FedBN: the whole test set with every client's own normalisation (E14)."""
    split = f"dirichlet(alpha={alpha}, min_size=10)"
    if method == "fedbn":
        more["evaluation"] = {"local_test": "common", "clients_every": 1}
    run = make_run(PROTOCOL, method=method, data=DATA[dataset], split=split, **more)
    return Cell(run, readers.best_mean_over_clients if method == "fedbn" else readers.best)


@PAPER.table("t1", "fedaf_t1_label_skew", "Table 1: methods under label skew", columns=("dataset", "alpha"), std="std")
def compare_methods(row: Keys) -> Cell:
    """Table 1."""
    method = fedaf(row["dataset"]) if row["method"] == "FedAF" else METHODS[row["method"]]
    return run_on(method, row["dataset"], row["alpha"])


DOMAINS = ("Clipart", "Infograph", "Painting", "Quickdraw", "Real", "Sketch")


@PAPER.table("t2", "fedaf_t2_domainnet", "Table 2: one domain of DomainNet per client", columns=("domain",))
def compare_domains(row: Keys) -> Cell:
    """Table 2: each domain's test samples, with its client's normalisation for FedBN; `Avg` is the domains' mean."""
    method = {
        **METHODS, "FedDM": "feddm(ipc=20, min_class=ipc, image_lr=1.0)", "FedAF": fedaf("DomainNet", ipc=20),
    }[row["method"]]  # fmt: skip
    run = make_run(
        PROTOCOL, method=method, data=DATA["DomainNet"], split="domain", clients=6, rounds=10,
        evaluation={"local_test": "common", "clients_every": 1},
    )  # fmt: skip
    return Cell(run, readers.domain(None if row["domain"] == "Avg" else DOMAINS.index(row["domain"])))


@PAPER.table(
    "t3", "fedaf_t3_ipc", "Table 3: images per class", rows=("configuration",), columns=("dataset", "alpha"), std="std"
)
def vary_ipc(row: Keys) -> Cell:
    """Table 3."""
    return run_on(
        fedaf(row["dataset"], ipc=int(row["configuration"].removeprefix("IPC="))), row["dataset"], row["alpha"]
    )


@PAPER.table(
    "t4", "fedaf_t4_ablation", "Table 4: CDC and LGKM", rows=("configuration",), columns=("dataset", "alpha"), std="std"
)
def ablate(row: Keys) -> Cell:
    """Table 4."""
    whole = fedaf(row["dataset"])
    method = {
        "FedAF": whole, "w/o CDC": whole.replace("lambda_loc=0.0001", "lambda_loc=0"),
        "w/o LGKM": whole.replace("lambda_glob=0.01", "lambda_glob=0"), "FedDM": METHODS["FedDM"],
    }[row["configuration"]]  # fmt: skip
    return run_on(method, row["dataset"], row["alpha"])


@PAPER.table(
    "t5", "fedaf_t5_gamma", "Table 5: the share gamma of w, ten rounds", rows=("gamma",), columns=("dataset", "alpha")
)
def vary_gamma(row: Keys) -> Cell:
    """Table 5."""
    method = fedaf(row["dataset"], gamma=row["gamma"])
    return run_on(method, row["dataset"], row["alpha"], rounds=int(row["rounds"]))


@PAPER.table("t6", "fedaf_t6_resnet18", "Table 6: ResNet-18", columns=("dataset", "alpha"), std="std")
def compare_with_resnet(row: Keys) -> Cell:
    """Table 6."""
    method = fedaf(row["dataset"]) if row["method"] == "FedAF" else METHODS[row["method"]]
    return run_on(method, row["dataset"], row["alpha"], model=RESNET)


@PAPER.table(
    "t7", "fedaf_t7_communication_mb", "Table 7: what a client sends in a round", unit="MB", rows=("dataset",),
    columns=("alpha",), values=("fedavg_convnet", "fedavg_resnet18", "fedaf_convnet", "fedaf_resnet18"),
)  # fmt: skip
def count_bytes(row: Keys) -> Cell:
    """Table 7: of a real round, FedAvg's with the real model (E11).

    FedAF's images are not moved there and its network is narrow, which changes no byte of what its clients send.
    """
    method, _, network = row["value"].partition("_")
    text = fedaf(row["dataset"], steps=0, server_epochs=1) if method == "fedaf" else "fedavg"
    read = readers.condensed_megabytes_up if method == "fedaf" else readers.megabytes_up
    model = "convnet3(width=8)" if method == "fedaf" else "convnet3" if network == "convnet" else RESNET
    cell = run_on(text, row["dataset"], row["alpha"], model=model, rounds=1)
    return Cell(_take_one_step(cell.run), read, images_matter=False)


def _take_one_step(run: Run) -> Run:
    return replace(run, local=construct(type(run.local), {**vars(run.local), "steps": 1}))


def draw_curves(found: Found, note: str) -> Drawn:
    """Accuracy over rounds."""
    lines = {name: readers.curve(done) for name, done in found.items()}
    return Drawn(lines, "round", "test accuracy (%)", note=note)


DRAWN = ("FedAvg", "FedDM", "FedAF")


@PAPER.figure(
    "fig3", "accuracy over rounds, CIFAR-10, Dirichlet 0.02",
    lambda: {name: compare_methods({"method": name, "dataset": "CIFAR-10", "alpha": "0.02"}).run for name in DRAWN},
)  # fmt: skip
def draw_rounds(found: Found) -> Drawn:
    """Fig. 3."""
    return draw_curves(found, "the paper: 60 % after 3 rounds of FedAF, 15 of FedDM")


@PAPER.figure(
    "fig5", "accuracy over rounds, one domain of DomainNet per client",
    lambda: {name: compare_domains({"method": name, "domain": "Avg"}).run for name in DRAWN},
)  # fmt: skip
def draw_domains(found: Found) -> Drawn:
    """Fig. 5: the mean over the domains."""
    return draw_curves(found, "the paper: FedAF has in 2 rounds what FedDM needs 10 for")
