"""FedAS's tables: personal models of 20 clients on CIFAR, of which a share P is online in a round.

Yang, Huang, Ye, "FedAS: Bridging Inconsistency in Personalized Federated Learning", CVPR 2024. Training and test
samples are dealt out together and a quarter of each client's is held out; figures are pooled over clients, the best
round counts.
"""

from __future__ import annotations

from typing import Any

from unskew.recipes import readers
from unskew.recipes.base import Cell, Keys, Paper, make_run
from unskew.runs.config import Run

METHODS = {
    "FedAvg-P": "fedavg_p", "FedProx-P": "fedprox_p(mu=0.1)",
    "FedPer": "fedper(evaluate=round)",  # as its code tests it: before the new body is sent (A11)
    "Ditto": "ditto(fedavg, lam=0.5, personal_epochs=1)", "LG-FedAvg": "lg_fedavg", "FedBABU": "fedbabu(finetune=10)",
    "FedProto": "fedproto(form=original, lam=1.0)", "FedALA": "fedala(layer_idx=2, eta=1.0, share=0.8)",
    "FedPAC": "fedpac(lam=1.0, head_epochs=1)", "FedAS": "fedas",
}  # fmt: skip
DATA = {"CIFAR-10": "cifar10(normalisation=half)", "CIFAR-100": "cifar100(normalisation=half)"}
PROTOCOL: dict[str, Any] = {
    "model": "fedas_cnn", "clients": 20, "rounds": 40, "pool_test": True, "split_seed": 1, "augment": "none",
    "local": {"epochs": 5, "batch": 16, "lr": 0.005, "momentum": 0.0, "weight_decay": 0.0, "drop_last": True},
    "evaluation": {"local_test": "holdout", "holdout": 0.25, "clients_every": 1},
}  # fmt: skip


def reduce(run: Run) -> Run:
    """Nothing is taken away: a cell takes some 20 to 40 minutes on one core."""
    return run


PAPER = Paper(
    "fedas", "FedAS: Bridging Inconsistency in Personalized Federated Learning (CVPR 2024)", seeds=(0, 1, 2),
    cpu=reduce, cpu_text="the whole protocol; a cell takes 20 to 40 minutes on one core",
)  # fmt: skip


def run_online(method: str, data: str, beta: str, online: str) -> Run:
    """A method on Dirichlet(beta), a share of the clients online in a round."""
    split = f"dirichlet(alpha={beta}, min_size=40, cap=real)"
    return make_run(PROTOCOL, method=method, data=DATA[data], split=split, sample=float(online))


def compare_methods(row: Keys) -> Cell:
    """Tables 2 and 3."""
    read = readers.last_personal if row["method"] == "FedBABU" else readers.best_personal
    return Cell(run_online(METHODS[row["method"]], row["dataset"], row["beta"], row["online_ratio"]), read)


_LAYOUT: dict[str, Any] = {
    "columns": ("beta", "online_ratio"),
    "short": {"online_ratio": "P"},
    "derived": {"method": "delta_printed"},
}
PAPER.table("t2", "fedas_t2_cifar100", "Table 2: methods on CIFAR-100", **_LAYOUT)(compare_methods)
PAPER.table("t3", "fedas_t3_cifar10", "Table 3: methods on CIFAR-10", **_LAYOUT)(compare_methods)

ABLATION = {
    ("0", "0"): METHODS["FedPer"],  # the printed row is Table 3's FedPer
    ("1", "0"): "fedas(synchronise=false)", ("0", "1"): "fedas(align=false)", ("1", "1"): "fedas",
}  # fmt: skip


@PAPER.table(
    "t4", "fedas_t4_ablation", "Table 4: parameter alignment (PA) and client synchronisation (CS)", rows=("PA", "CS"),
    columns=("online_ratio",), short={"online_ratio": "P"},
)  # fmt: skip
def ablate(row: Keys) -> Cell:
    """Table 4."""
    method = ABLATION[row["PA"], row["CS"]]
    return Cell(
        run_online(method, row["dataset_inferred"], row["beta_inferred"], row["online_ratio"]), readers.best_personal
    )
