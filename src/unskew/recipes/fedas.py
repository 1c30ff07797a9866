"""FedAS's tables: personal models of 20 clients on CIFAR, of which a share P is online in a round.

Yang, Huang, Ye, "FedAS: Bridging Inconsistency in Personalized Federated Learning", CVPR 2024. Training and test
samples are dealt out together and a quarter of each client's is held out; figures are pooled over clients, the best
round counts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from unskew.base.registry import construct
from unskew.measures.base import build_all
from unskew.recipes import readers
from unskew.recipes.base import Cell, Drawn, Finished, Found, Keys, Paper, Runs, make_run
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


def measure_fedas(measure: str, online: str = "0.4", **more: Any) -> Runs:
    """FedAS on CIFAR-10 at beta = 0.1 with something measured."""
    return lambda: {
        "FedAS": replace(run_online("fedas", "CIFAR-10", "0.1", online), measure=build_all([measure]), **more)
    }


@PAPER.figure(
    "fig3a", "5 % of the parameters taken from the received model, CIFAR-10, beta = 0.1, P = 0.4",
    measure_fedas("replaced"),
)  # fmt: skip
def draw_replaced(found: Found) -> Drawn:
    """Fig. 3a: those of the highest Fisher information against random ones, on the clients' own training samples."""
    names = {"none": "none", "highest Fisher": "fisher", "random": "random"}
    shares = readers.in_order(readers.measured(f"replaced_{key}")(found["FedAS"]) for key in names.values())
    points = [(place, 100 * share) for place, share in shares]
    return Drawn({"last round": points}, "replaced", "accuracy (%)", "bar", tuple(names), "the paper: a large drop")


@PAPER.figure(
    "fig3b", "the trace of the Fisher information over the rounds, CIFAR-10, beta = 0.1, P = 0.4",
    measure_fedas("fisher(absent=true)"),
)  # fmt: skip
def draw_traces(found: Found) -> Drawn:
    """Fig. 3b: the mean over all clients; one that is offline keeps the trace of its last visit."""
    line = [(number, sum(traces) / len(traces)) for number, traces in _traces(found["FedAS"])]
    return Drawn({"mean over clients": line}, "round", "trace", note="the paper: it rises with training")


@PAPER.figure(
    "fig4a", "the trace of clients that stay offline, CIFAR-10, beta = 0.1",
    measure_fedas("fisher(absent=true)", "1", stragglers=0.5, straggler_online=0.0),
)  # fmt: skip
def draw_stragglers(found: Found) -> Drawn:
    """Fig. 4a: a fixed half of the clients is never online (A6), so that its traces stay at their first values."""
    finished = found["FedAS"]
    seen = {client for row in finished.rounds for client in row.get("clients", [])}
    lines: dict[str, list[tuple[float, float]]] = {"online": [], "offline": []}
    for number, traces in _traces(finished):
        for name, line in lines.items():
            own = [trace for client, trace in enumerate(traces) if (client in seen) == (name == "online")]
            line.append((number, sum(own) / max(1, len(own))))
    return Drawn(lines, "round", "trace", note="the paper: stragglers' weights are lower")


def _traces(finished: Finished) -> list[tuple[float, list[float]]]:
    rows = [row for row in finished.rounds if "fisher_traces" in row.get("measures", {})]
    return [(float(row["round"]), row["measures"]["fisher_traces"]) for row in rows]


def vary_method(name: str, title: str, methods: dict[str, str], note: str) -> None:
    """A figure of variants, the best round of each."""

    def draw(found: Found) -> Drawn:
        points = readers.in_order(readers.best_personal(found[variant]) for variant in methods)
        return Drawn({"best round": points}, "variant", "accuracy (%)", "bar", tuple(methods), note)

    PAPER.figure(
        name, f"{title}, CIFAR-10, beta = 0.1, P = 0.4",
        lambda: {variant: run_online(method, "CIFAR-10", "0.1", "0.4") for variant, method in methods.items()},
    )(draw)  # fmt: skip


vary_method(
    "fig4b", "manner and target of the alignment",
    {"serial, local": "fedas", "serial, received": "fedas(align_target=received)",
     "parallel, local": "fedas(align_mode=parallel)",
     "parallel, received": "fedas(align_mode=parallel, align_target=received)"},
    "the paper: serial alignment to local targets is best",
)  # fmt: skip
vary_method(
    "fig6", "normalisation of the traces",
    {rule: f"fedas(normalisation={rule})" for rule in ("proportional", "softmax", "minmax")},
    "the paper: all are close",
)  # fmt: skip


def vary_local(name: str, title: str, option: str, values: tuple[int, ...]) -> None:
    """Fig. 7: batches and epochs, with as many rounds as keep the number of update steps."""

    def change(value: int) -> Run:
        run = run_online("fedas", "CIFAR-10", "0.1", "0.4")
        local = construct(type(run.local), {**vars(run.local), option: value})
        steps = value / 16 if option == "batch" else 5 / value  # against batches of 16 and 5 epochs
        return replace(run, local=local, rounds=max(1, round(40 * steps)))

    def draw(found: Found) -> Drawn:
        points = readers.in_order(readers.best_personal(found[value]) for value in values)
        return Drawn({"FedAS": points}, option, "accuracy (%)", ticks=tuple(map(str, values)), note="the paper: robust")

    PAPER.figure(name, title, lambda: {value: change(value) for value in values})(draw)


vary_local("fig7a", "the batch, with as many steps", "batch", (8, 16, 32, 64))
vary_local("fig7b", "local epochs, with as many steps", "epochs", (1, 2, 5, 10))
