"""FedSOL's tables: the FedAvg CNN and larger networks on six data sets, cut by shards or by Dirichlet (LDA).

Lee, Jeong, Kim, Oh, Yun, "FedSOL: Stabilized Orthogonal Learning with Proximal Restrictions in Federated Learning",
CVPR 2024. Figures are those of the last round, over three runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from unskew.base.registry import construct
from unskew.recipes import readers
from unskew.recipes.base import Cell, Computed, Drawn, Found, Keys, Paper, make_run
from unskew.recipes.toy import walk_both
from unskew.runs.config import Run, cohort_size

METHODS = {
    "FedAvg": "fedavg", "FedProx": "fedprox(mu=1.0)", "FedNova": "fednova", "SCAFFOLD": "scaffold(divisor=momentum)",
    "FedNTD": "fedntd(beta=1.0, tau=1.0)", "FedSAM": "fedsam(rho=0.1)", "FedASAM": "fedasam(rho=1.0)",
    "FedDyn": "feddyn(alpha=0.1)", "MOON": "moon(mu=0.1, tau=0.5)", "FedSOL": "fedsol(rho=2.0, where=head)",
}  # fmt: skip
"""With the values of Table 8; FedDyn's of the code (S10)."""
HALF = "use_validation_for_training=true, normalisation=half"  # S14
DATA: dict[str, dict[str, Any]] = {
    "MNIST": {"data": "mnist", "augment": "fedsol_cifar", "clients": 100, "sample": 0.1, "rounds": 200},
    "CIFAR-10": {"data": "cifar10(normalisation=cifar_exact)", "augment": "fedsol_cifar", "clients": 100, "sample": 0.1,
                 "rounds": 300},
    "SVHN": {"data": "svhn", "augment": "crop_flip", "clients": 100, "sample": 0.1, "rounds": 200},  # S7
    "CINIC-10": {"data": "cinic10", "augment": "fedsol_cinic", "clients": 200, "sample": 0.05, "rounds": 300},
    "PathMNIST": {"data": f"pathmnist({HALF})", "augment": "flip", "clients": 200, "sample": 0.05, "rounds": 200},
    "TissueMNIST": {"data": f"tissuemnist({HALF})", "augment": "flip", "clients": 200, "sample": 0.05, "rounds": 200},
    # Table 10; neither augmentation nor constants are said: our choice
    "CIFAR-100": {"data": "cifar100", "augment": "crop_flip", "clients": 100, "sample": 0.1, "rounds": 300},
    "ImageNet-100": {"data": "imagenet100", "augment": "crop_flip", "clients": 100, "sample": 0.1, "rounds": 300},
}  # fmt: skip
"""Data, augmentation (Cutout for CIFAR-10 and MNIST: S13) and the scenario of Table 7."""
MODELS = {
    "Vgg11": "vgg11", "VggNet-11": "vgg11", "Res18": "resnet18(norm=batch_stats)",  # S21
    "ResNet-18": "resnet18(norm=batch_stats)", "SL-ViT": "sl_vit",
}  # fmt: skip
PROTOCOL: dict[str, Any] = {
    "model": "fedavg_cnn", "split_seed": 19940817,
    "local": {"epochs": 5, "batch": 50, "lr": 0.01, "momentum": 0.9, "weight_decay": 1e-5, "lr_decay": 0.99},
    "evaluation": {"local_test": "none"},
}  # fmt: skip


def reduce(run: Run) -> Run:
    """A third of the rounds; a tenth with the larger networks."""
    small = run.model is not None and run.model.name == "fedavg_cnn"
    return replace(run, rounds=run.rounds // (3 if small else 10))


PAPER = Paper(
    "fedsol", "FedSOL: Stabilized Orthogonal Learning with Proximal Restrictions in Federated Learning (CVPR 2024)",
    seeds=(2023, 2024, 2025), cpu=reduce,
    cpu_text="a third of the rounds (a tenth with VGG-11, ResNet-18 and SL-ViT); all else as published; about 45 "
    "minutes a row of CIFAR-10 on two cores",
)  # fmt: skip


def read_split(setting: str) -> str:
    """`s=2` and `alpha=0.1` as splits."""
    key, _, value = setting.partition("=")
    return f"shards:{value}" if key == "s" else f"dirichlet(alpha={value}, min_size=10, cap=integer)"


def run_on(method: str, dataset: str = "CIFAR-10", setting: str = "alpha=0.1", **more: Any) -> Run:
    """A method in the scenario of a data set."""
    return make_run(PROTOCOL, method=method, split=read_split(setting), **{**DATA[dataset], **more})


L2, KL = "fedprox(mu=1.0)", "fedavg(terms=[kl(tau=3.0)])"
PROJECTION = {
    ("none (FedAvg)", "-"): "fedavg", ("L2 Distance", "base"): L2, ("KL-Divergence", "base"): KL,
    ("L2 Distance", "projection"): "fedsol(prox=l2, projection=true)",
    ("KL-Divergence", "projection"): "fedsol(projection=true)",
}  # fmt: skip


@PAPER.table(
    "t1", "fedsol_t1_projection", "Table 1: projection of the local gradient, CIFAR-10, LDA 0.1",
    rows=("proximal_loss", "usage"), std="std",
)  # fmt: skip
def project(row: Keys) -> Cell:
    """Table 1."""
    return Cell(run_on(PROJECTION[row["proximal_loss"], row["usage"]]), readers.last)


@PAPER.table("t2", "fedsol_t2_main", "Table 2: methods on six data sets", columns=("dataset", "setting"), std="std")
def compare_methods(row: Keys) -> Cell:
    """Table 2."""
    return Cell(run_on(METHODS[row["method"]], row["dataset"], row["setting"]), readers.last)


@PAPER.table(
    "t3", "fedsol_t3_architectures", "Table 3: VGG-11, ResNet-18 and SL-ViT", rows=("model", "method"),
    columns=("dataset", "setting"), std="std",
)  # fmt: skip
def vary_networks(row: Keys) -> Cell:
    """Table 3."""
    run = run_on(METHODS[row["method"]], row["dataset"], row["setting"], model=MODELS[row["model"]])
    return Cell(run, readers.last)


COMBINED = {**METHODS, "FedNova": "fednova(control=ccvr)"}  # S11, 4.4: the term that its code adds to the gradient


@PAPER.table(
    "t4", "fedsol_t4_proximal_combination", "Table 4: FedSOL with the proximal gradient of other methods, LDA 0.1",
    rows=("method", "usage"), columns=("dataset",),
)  # fmt: skip
def combine(row: Keys) -> Cell:
    """Table 4: rho = 2, all layers (4.4)."""
    method = METHODS[row["method"]]
    if row["usage"] != "base":
        method = f"fedsol({COMBINED[row['method']]}, rho=2.0, where=all)"
    return Cell(run_on(method, row["dataset"]), readers.last)


@PAPER.table(
    "t5", "fedsol_t5_partial", "Table 5: which weights are perturbed, CIFAR-10, LDA 0.1", rows=("target",),
    columns=("rho",),
)  # fmt: skip
def perturb_parts(row: Keys) -> Cell:
    """Table 5."""
    method = "fedavg" if row["target"] == "none" else f"fedsol(where={row['target']}, rho={row['rho']})"
    return Cell(run_on(method), readers.last)


@PAPER.table(
    "t7", "fedsol_t7_scenarios", "Table 7: clients, rounds, share", unit="", rows=("dataset",),
    values=("clients", "rounds", "sampling_ratio"),
)  # fmt: skip
def state_scenario(row: Keys) -> Computed:
    """Table 7: what the recipes of Table 2 take."""
    run = run_on("fedavg", row["dataset"])
    assert run.clients is not None
    found = {
        "clients": run.clients, "rounds": run.rounds,
        "sampling_ratio": cohort_size(run.sample, run.clients) / run.clients,
    }  # fmt: skip
    return Computed(lambda scale: float(found[row["value"]]))


@PAPER.table("t8", "fedsol_t8_hyperparameters", "Table 8: hyper-parameters", unit="", values=("selected",))
def state_values(row: Keys) -> Computed:
    """Table 8: what the recipes of Tables 2 and 4 take."""
    method = run_on(METHODS[row["method"]]).method
    names = {"FedProx": ("mu",), "FedNTD": ("beta", "tau"), "FedSAM": ("rho",), "FedASAM": ("rho",),
             "MOON": ("mu", "tau"), "FedSOL": ("rho",)}.get(row["method"], ())  # fmt: skip
    text = ", ".join(f"{name}={getattr(method, name)}" for name in names) or "None"
    return Computed(lambda scale: text)


PERSONAL = {
    "Local-only": "local(epochs=200, decay=0.99)", "FedAvg": "finetuned(fedavg, epochs={e})",
    "Per-FedAvg": "perfedavg(beta=0.01, adapt_epochs={e})", "FedBABU": "fedbabu(finetune={e})",
    "kNN-Per": "knnper(finetuned(fedavg, epochs={e}), k=5, share=0.5, capacity=500)",
    "FedSOL-FT": "finetuned(fedsol(rho=2.0, where=head), epochs={e})",
}  # fmt: skip


@PAPER.table(
    "t9", "fedsol_t9_personalised", "Table 9: personal models after fine-tuning", rows=("method", "finetune_epochs"),
    columns=("dataset",), std="std_over_clients", short={"finetune_epochs": "epochs"}, spread="clients",
)  # fmt: skip
def personalise(row: Keys) -> Cell:
    """Table 9: the mean over clients, on up to 1000 test samples each; LDA 0.1 is our choice, none is said."""
    local = {"local_test": "proportional", "every": 10}
    once: dict[str, Any] = {"rounds": 1, "sample": 1.0} if row["method"] == "Local-only" else {}
    run = run_on(PERSONAL[row["method"]].format(e=row["finetune_epochs"]), row["dataset"], evaluation=local, **once)
    return Cell(run, readers.mean_over_clients)


@PAPER.table("t10", "fedsol_t10_larger", "Table 10: larger data sets, ResNet-18", columns=("dataset", "setting"))
def compare_on_larger(row: Keys) -> Cell:
    """Table 10 (App. E)."""
    run = run_on(METHODS[row["method"]], row["dataset"], row["setting"], model=MODELS["Res18"])
    return Cell(run, readers.last)


LARGE = {"FedAvg": "fedavg", "FedSOL_full": "fedsol(rho=2.0, where=all)", "FedSOL_head": METHODS["FedSOL"]}


@PAPER.table(
    "t11", "fedsol_t11_head_large", "Table 11: head and full perturbation of larger networks, CIFAR-10, LDA 0.1",
    rows=("model", "method"),
)  # fmt: skip
def perturb_large(row: Keys) -> Cell:
    """Table 11."""
    return Cell(run_on(LARGE[row["method"]], model=MODELS[row["model"]]), readers.last)


STRATEGIES = {
    "A0": "fedavg", "A1": METHODS["FedSOL"], "A5": "fedsol(strategy=A5)",
    **{name: f"fedsol(strategy={name}, rho=2.0, where=head, scaling=fixed)"  # 4.6
       for name in ("A2", "A3", "A4", "A6")},
}  # fmt: skip


@PAPER.table(
    "t12", "fedsol_t12_strategies", "Table 12: ways to use the proximal gradient, CIFAR-10, LDA 0.1", rows=("strategy",)
)
def vary_strategy(row: Keys) -> Cell:
    """Table 12."""
    return Cell(run_on(STRATEGIES[row["strategy"]]), readers.last)


@PAPER.table(
    "t13", "fedsol_t13_latency", "Table 13: seconds of local training", unit="s", values=("seconds_per_step",),
    comparable=False,
)  # fmt: skip
def time_methods(row: Keys) -> Cell:
    """Table 13: one round of CIFAR-10, LDA 0.1, on this machine; data and network are not said there."""
    run = run_on(METHODS[row["method"]])
    return Cell(replace(run, rounds=1), readers.local_seconds)


RHOS = (0.5, 1.0, 1.5, 2.0)


BY_RHO = {0.0: "fedavg", **{rho: f"fedsol(rho={rho}, where=all)" for rho in RHOS}}


@PAPER.figure(
    "fig3", "cosine of the local gradient and the proximal one against rho, CIFAR-10, LDA 0.1",
    lambda: {rho: run_on(method, measure="orthogonality") for rho, method in BY_RHO.items()},
)  # fmt: skip
def draw_orthogonality(found: Found) -> Drawn:
    """Fig. 3: the last round's mean over clients, FedAvg at rho = 0; and the proximal loss."""
    lines = {
        name: [(rho, value) for rho, run in found.items() if (value := readers.measured(key)(run)) is not None]
        for name, key in (("cosine", "orthogonality"), ("proximal loss", "proximal_loss"))
    }
    return Drawn(lines, "rho", "", note="the paper: towards orthogonal and a lower proximal loss as rho grows")


def vary_setting(
    name: str, title: str, setting: str, values: Sequence[float], change: Callable[[Run, float], Run], note: str
) -> None:
    """Fig. 4: accuracy of FedAvg and FedSOL against a setting."""
    drawn = ("FedAvg", "FedSOL")

    def draw(found: Found) -> Drawn:
        lines = {method: readers.in_order(readers.last(found[method, value]) for value in values) for method in drawn}
        return Drawn(lines, setting, "test accuracy (%)", ticks=tuple(f"{value:g}" for value in values), note=note)

    PAPER.figure(
        name, title,
        lambda: {(method, value): change(run_on(METHODS[method]), value) for method in drawn for value in values},
    )(draw)  # fmt: skip


def _with_local(run: Run, **changed: Any) -> Run:
    return replace(run, local=construct(type(run.local), {**vars(run.local), **changed}))


vary_setting(
    "fig4a", "the share of clients in a round", "share", (0.02, 0.05, 0.1, 0.2),
    lambda run, share: replace(run, sample=share), "the paper: FedAvg is near chance at 0.02",
)  # fmt: skip
vary_setting(
    "fig4b", "local epochs", "epochs", (1, 3, 5, 10), lambda run, epochs: _with_local(run, epochs=int(epochs)),
    "the paper: FedSOL stays above",
)  # fmt: skip
vary_setting(
    "fig4c", "the learning rate", "lr", (0.001, 0.01, 0.05, 0.1), lambda run, lr: _with_local(run, lr=lr),
    "the paper: FedSOL stays above",
)  # fmt: skip


@PAPER.figure("fig4d", "the radius rho", lambda: {rho: run_on(f"fedsol(rho={rho})") for rho in RHOS})
def draw_radius(found: Found) -> Drawn:
    """Fig. 4: accuracy against rho."""
    points = readers.in_order(readers.last(found[rho]) for rho in RHOS)
    return Drawn(
        {"FedSOL": points}, "rho", "test accuracy (%)", ticks=tuple(map(str, RHOS)), note="the paper: best 0.5-2"
    )


@PAPER.figure(
    "fig5", "the scale Lambda of the perturbation by layer, CIFAR-10, LDA 0.1",
    lambda: {"FedSOL": run_on(METHODS["FedSOL"], measure="scales")},
)  # fmt: skip
def draw_scales(found: Found) -> Drawn:
    """Fig. 5: its mean over a layer's parameters and over clients, after the last round."""
    scales = readers.listed("scales")(found["FedSOL"])
    points = readers.in_order(scales)
    layers = tuple(str(place) for place in range(1, len(scales) + 1))
    return Drawn({"FedSOL": points}, "layer", "mean of Lambda", "bar", layers, "the paper: larger in later layers")


@PAPER.figure(
    "toy", "App. L: a client's two parameters, from where it wants to be, with the server at (0, 0)", runs=dict
)
def draw_toy(found: Found) -> Drawn:
    """4000 steps of gradient descent at 0.01; nothing is trained on data, so that every scale gives the same."""
    lines = {name: path[::40] for name, path in walk_both().items()}
    lines |= {"server": [(0.0, 0.0)], "client's optimum": [(1.0, 1.0)]}
    note = "the paper: FedSOL ends on the ray to the client's optimum, FedProx does not"
    return Drawn(lines, "u", "v", "scatter", note=note)


def measure_over_rounds(
    name: str, title: str, measure: str, y: str, note: str, methods: Sequence[str], **more: Any
) -> None:
    """A figure of one measure over the rounds."""

    def draw(found: Found) -> Drawn:
        return Drawn({method: readers.curve(found[method], measure) for method in methods}, "round", y, note=note)

    PAPER.figure(
        name, title, lambda: {method: run_on(METHODS[method], measure=measure, **more) for method in methods}
    )(draw)  # fmt: skip


measure_over_rounds(
    "fig6", "weight divergence, CIFAR-10, LDA 0.1", "divergence", "|w_g - w_k|", "the paper: FedSOL's is smaller",
    ("FedAvg", "FedProx", "FedSOL"),
)  # fmt: skip
measure_over_rounds(
    "fig7", "forgetting, CIFAR-10, two shards a client", "forgetting", "forgetting",
    "the paper: FedSOL keeps the classes better", ("FedAvg", "FedSOL"), setting="s=2",
)  # fmt: skip

SHARP = ("FedAvg", "FedASAM", "FedSOL")


@PAPER.figure(
    "fig8", "the largest eigenvalues of the Hessian, CIFAR-10, LDA 0.1",
    lambda: {name: run_on(METHODS[name], measure="hessian(every=1000)") for name in SHARP},
)  # fmt: skip
def draw_hessian(found: Found) -> Drawn:
    """Fig. 8: lambda_1 and lambda_1 / lambda_5 after the last round."""
    lines = {
        title: readers.in_order(readers.measured(key)(found[name]) for name in SHARP)
        for title, key in (("lambda_1", "hessian_1"), ("lambda_1 / lambda_5", "hessian_ratio"))
    }
    return Drawn(lines, "method", "", "bar", SHARP, "the paper: FedSOL has the smallest ratio")
