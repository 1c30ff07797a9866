"""FedSOL against numbers computed outside this project (UNSKEW_GOLDEN: other inputs), identities, and fine-tuning."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from awkward import DATA, config, play
from support import (
    FixedData,
    FixedFederation,
    PlannedTask,
    assert_tree,
    golden,
    golden_names,
    golden_task,
    rename,
    to_tree,
)
from unskew.base import tree
from unskew.base.batch import Batch
from unskew.base.errors import InputError
from unskew.base.registry import validated
from unskew.base.settings import LocalSettings
from unskew.core.jobs import Job
from unskew.core.method import Method, methods
from unskew.core.net import Net
from unskew.core.observer import Observer
from unskew.core.schedule import Constant
from unskew.methods.fedprox import FedProx
from unskew.methods.fedsol.method import FedSOL, perturbation
from unskew.methods.fedsol.strategies import remove_conflict
from unskew.models.base import Model
from unskew.runs import building
from unskew.terms.kl import KL
from unskew.terms.l2 import L2


class GivenData(FixedData):
    """Given batches whose samples are numbered throughout, so that a teacher's answers can be looked up."""

    def batches(self, settings, order, noise, skip_single):
        for _ in range(settings.epochs):
            yield from self.passes(0)

    def passes(self, batch):
        done = 0
        for x, y in self.given:
            yield Batch(x, y, torch.arange(done, done + len(y)))
            done += len(y)


class Before(Observer):
    """Calls a function with the parameters before each step."""

    def __init__(self, call):
        self.call = call

    def before_step(self, c, params, batch):
        self.call(params)


def visit(method, file, batches=None):
    """The prepared context of a client that received the file's global model."""
    data = GivenData(batches or file.inputs["batches"], file.inputs["dims"]["c"])
    task = golden_task(method, file, [data], [[0]])
    return task.visit(Job("train", 1, 0, {"model": task.initial["model"], "buffers": {}}), data)


def check_training(method, file, start, expected):
    """Perturbations before each step, and the model after the last one."""
    c = visit(method, file)
    before = []
    watched = replace(c, observers=(Before(lambda params: before.append(tree.copy(params))),))
    after = method.train(watched, start)
    assert len(before) == len(expected["perturbations"])
    names = method.targets(c)
    for params, batch, wanted in zip(before, c.batches(), expected["perturbations"], strict=True):
        g_p = tree.select(method.proximal_gradient(c, params, batch), names)
        eps = perturbation(g_p, params, c.received["model"], method.rho, method.scaling, method.threshold)
        assert_tree({n: eps.get(n, torch.zeros_like(v)) for n, v in params.items()}, wanted, file)
        assert set(eps) <= {rename(name) for name in wanted}
    assert_tree(after, expected["params_after"], file)


def cases(pattern, key=None):
    found = [(name, golden(name)) for name in golden_names(pattern)]
    return [(name, case) for name, file in found for case in (file.expected if key is None else file.expected[key])]


@pytest.mark.parametrize(("name", "variant"), cases("fedsol_official*", "variants"))
def test_official_code(name, variant):
    file = golden(name)
    kind, where = variant.split("_")
    scaling = {"adaptive": "code", "fixed": "fixed"}[kind]
    method = FedSOL(prox=KL(tau=file.hyper["temperature"]), rho=file.hyper["rho"], where=where, scaling=scaling)
    start = to_tree(file.inputs["params_local_start"])
    check_training(method, file, start, file.expected["variants"][variant])


@pytest.mark.parametrize("name", golden_names("fedsol_official*"))
def test_kl_loss_at_the_start(name):
    file = golden(name)
    term = KL(tau=file.hyper["temperature"])
    c = visit(FedSOL(prox=term), file)
    start, batch = to_tree(file.inputs["params_local_start"]), next(iter(c.batches()))
    wanted = torch.tensor(file.expected["kl_loss_batch0"], dtype=torch.float64)
    value = term(c, start, batch, c.forward(start, batch.x))
    torch.testing.assert_close(value, wanted, rtol=file.rtol, atol=file.atol)


@pytest.mark.parametrize(("name", "where"), cases("fedsol_from_global*"))
def test_from_the_received_model(name, where):
    file = golden(name)
    method = FedSOL(prox=KL(tau=file.hyper["temperature"]), rho=file.hyper["rho"], where=where)
    check_training(method, file, to_tree(file.inputs["params_global"]), file.expected[where])


@pytest.mark.parametrize(("name", "variant"), cases("fedsol_paper_eq7*"))
def test_scaling_of_the_paper(name, variant):
    file = golden(name)
    loss, scope, where = variant.split("_")
    prox = {"kl": KL(tau=file.hyper["temperature"]), "l2": L2()}[loss]
    scaling = {"layer": "paper", "tensor": "tensor"}[scope]
    method = FedSOL(prox=prox, rho=file.hyper["rho"], where=where, scaling=scaling)
    check_training(method, file, to_tree(file.inputs["params_local_start"]), file.expected[variant])


def ablation(file, **options):
    prox = {"kl": KL(tau=file.hyper["temperature"]), "l2": L2()}[file.hyper["proximal_loss"]]
    return FedSOL(prox=prox, rho=file.hyper["rho"], where="all", scaling="fixed", **options)


@pytest.mark.parametrize(("name", "strategy"), cases("fedsol_strategies_and_projection*", "strategies"))
def test_strategies_of_table_12(name, strategy):
    file = golden(name)
    file.hyper.setdefault("lr", 1.0)
    beta = 1.0 if strategy == "A5" else file.hyper["beta"]  # A5 is printed without beta
    method = ablation(file, strategy=strategy.removesuffix("_beta"), beta=beta)
    c = visit(method, file, [file.inputs["batch"]])
    grads = method.gradient(c, to_tree(file.inputs["params_local"]), next(iter(c.batches())))
    assert_tree(grads, file.expected["strategies"][strategy], file)


@pytest.mark.parametrize("name", golden_names("fedsol_strategies_and_projection*"))
def test_projection(name):
    file = golden(name)
    file.hyper.setdefault("lr", 1.0)
    method = ablation(file, projection=True)
    c = visit(method, file, [file.inputs["batch"]])
    params, batch = to_tree(file.inputs["params_local"]), next(iter(c.batches()))
    g_p, g_l = method.proximal_gradient(c, params, batch), ablation(file, strategy="A0").gradient(c, params, batch)
    assert_tree(g_p, file.expected["g_prox"], file)
    assert_tree(g_l, file.expected["g_local"], file)
    wanted = torch.tensor(file.expected["dot"], dtype=torch.float64)
    torch.testing.assert_close(tree.dot(g_l, g_p), wanted, rtol=file.rtol, atol=file.atol)
    assert_tree(method.gradient(c, params, batch), file.expected["projection_of_g_local"], file)
    assert_tree(remove_conflict(g_l, tree.scale(g_p, -1)), file.expected["projection_against_minus_gp"], file)
    assert_tree(remove_conflict(g_l, tree.zeros_like(g_p)), file.expected["g_local"], file)


# ------------------------------------------------------------------------------- the toy problem of appendix L


class Point(nn.Module):
    """Two parameters, whatever the input."""

    def __init__(self):
        super().__init__()
        self.uv = nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def forward(self, x):
        return self.uv.expand(len(x), 2)


def bowl(method, out, batch):
    """0.5 (u - u_l)^2 + 0.5 delta (v - v_l)^2."""
    curvature = torch.tensor([1.0, method.delta], dtype=torch.float64)
    return 0.5 * (curvature * (out.logits[0] - batch.x[0]).square()).sum()


@validated
class Toy(Method):
    delta: float = 1.0

    def criterion(self, c, out, batch):
        return bowl(self, out, batch)


@validated
class ToyProx(FedProx):
    delta: float = 1.0

    def criterion(self, c, out, batch):
        return bowl(self, out, batch)


def toy_points(method, file):
    """Where local training is after each of the listed steps."""
    hyper = file.hyper
    data = FixedData([{"x": [[hyper["u_l"], hyper["v_l"]]], "y": [0]}], 2)
    task = PlannedTask(
        method=method, federation=FixedFederation([data], SimpleNamespace(num_classes=2)),
        net=Net(Model(nn.Identity(), Point())), seed=0, schedule=Constant(), buffer_policy="average", cohort_size=1,
        initial={"model": {"head.uv": torch.zeros(2, dtype=torch.float64)}, "buffers": {}},
        local=LocalSettings(lr=hyper["lr"], batch=1, epochs=max(hyper["steps"])),
    )  # fmt: skip
    c = task.visit(Job("train", 1, 0, {"model": task.initial["model"]}), data)
    seen = []
    watched = replace(c, observers=(Before(lambda params: seen.append(params["head.uv"].detach().clone())),))
    start = {"head.uv": torch.tensor(file.inputs["start"], dtype=torch.float64)}
    seen.append(method.train(watched, start)["head.uv"])
    return {step: seen[step] for step in hyper["steps"]}


@pytest.mark.parametrize("name", golden_names("fedsol_toy*"))
def test_toy_problem_reaches_the_closed_form(name):
    file = golden(name)
    hyper = file.hyper
    sol = FedSOL(inner=Toy(delta=hyper["delta"]), prox=L2(), rho=hyper["rho"], where="all", scaling="fixed")
    found = {
        "fedsol": toy_points(sol, file),
        "fedprox": toy_points(ToyProx(mu=hyper["mu"], delta=hyper["delta"]), file),
    }
    goal, delta, mu = torch.tensor([hyper["u_l"], hyper["v_l"]], dtype=torch.float64), hyper["delta"], hyper["mu"]
    curvature = torch.tensor([1.0, delta], dtype=torch.float64)
    limits = {"fedsol": goal * (1 - hyper["rho"] / goal.norm()), "fedprox": curvature * goal / (curvature + mu)}
    for kind, points in found.items():
        for expected in file.expected["iterates"]:
            wanted = torch.tensor(expected[kind], dtype=torch.float64)
            torch.testing.assert_close(points[expected["step"]], wanted, rtol=file.rtol, atol=file.atol)
        limit = torch.tensor(file.expected[f"{kind}_limit"], dtype=torch.float64)
        torch.testing.assert_close(limits[kind], limit, rtol=file.rtol, atol=file.atol)
        # as near as its last iterate, which is all that a slow problem can promise
        last = torch.tensor(file.expected["iterates"][-1][kind], dtype=torch.float64)
        assert (points[max(hyper["steps"])] - limit).norm() <= max(4e-3, float((last - limit).norm()) * (1 + 1e-6))


# -------------------------------------------------------------------------------------- identities, by hand


def same_bits(one, other):
    return all(torch.equal(one[group][name], v) for group in ("model", "buffers") for name, v in other[group].items())


def test_perturbation_by_hand():
    # w - w_g = (3, -4), direction (3, 4) of length 5. fixed, rho 10: eps = 10 (3, 4)/5 = (6, 8).
    # along the first dimension |w - w_g| is over 5: Lambda = (0.6, 0.8), eps = (3.6, 6.4).
    w, received, direction = ({"l.w": torch.tensor(v)} for v in ([4.0, -3.0], [1.0, 1.0], [3.0, 4.0]))
    for scaling, eps in {"fixed": [6.0, 8.0], "code": [3.6, 6.4], "tensor": [3.6, 6.4], "paper": [3.6, 6.4]}.items():
        found = perturbation(direction, w, received, 10.0, scaling, 1e-6)["l.w"]
        torch.testing.assert_close(found, torch.tensor(eps))
    # a matrix with columns (3, 4) and (0, 2) away: each over its own norm, 5 and 2; over all of it: sqrt(29)
    w, received = {"l.w": torch.tensor([[3.0, 0.0], [4.0, 2.0]])}, {"l.w": torch.zeros(2, 2)}
    ones = {"l.w": torch.ones(2, 2)}  # of length 2
    by_column, whole = torch.tensor([[0.6, 0.0], [0.8, 1.0]]), w["l.w"] / 29**0.5
    for scaling, lam in {"code": by_column, "tensor": whole, "paper": whole}.items():
        torch.testing.assert_close(perturbation(ones, w, received, 2.0, scaling, 1e-6)["l.w"], lam)
    # not longer than the threshold: nothing is moved
    assert torch.equal(perturbation(ones, w, received, 2.0, "fixed", 2.0)["l.w"], torch.zeros(2, 2))


@pytest.mark.parametrize("spec", ["fedsol(rho=0)", "fedsol(rho=0, where=all)", "fedsol(fedprox(mu=1.0), rho=0)",
                                  "fedsol(strategy=A0)"])  # fmt: skip
def test_without_radius_it_is_fedavg(spec):
    assert same_bits(play(spec).server, play("fedavg").server)


def test_terms_of_the_user_are_part_of_the_local_loss():
    for spec in ("fedsol(rho=0, terms=[prox(mu=0.5)])", "fedsol(fedavg(terms=[prox(mu=0.5)]), rho=0)"):
        assert same_bits(play(spec).server, play("fedprox(mu=0.5)").server)
    assert not same_bits(play("fedsol(terms=[prox(mu=0.5)])").server, play("fedsol").server)


@pytest.mark.parametrize("spec", ["fedsol", "fedsol(where=all)", "fedsol(scaling=paper, where=body)", "fedsol(prox=l2)",
                                  "fedsol(prox=l2, scaling=fixed, where=all)"])  # fmt: skip
def test_the_first_step_is_fedavgs_and_later_ones_are_not(spec):
    one, two = ({"batch": 8, "steps": steps, "lr": 0.05} for steps in (1, 3))
    assert same_bits(play(spec, local=one, rounds=1).server, play("fedavg", local=one, rounds=1).server)
    assert not same_bits(play(spec, local=two, rounds=1).server, play("fedavg", local=two, rounds=1).server)


def test_scaffold_inside_keeps_its_controls_and_its_first_round():
    inside, plain = play("fedsol(scaffold)", rounds=1).server, play("scaffold", rounds=1).server
    assert same_bits(inside, plain)  # all controls are zero: nothing is moved
    assert all(torch.equal(inside["control"][name], value) for name, value in plain["control"].items())
    later = [play(spec).server for spec in ("fedsol(scaffold)", "scaffold", "fedavg")]
    assert not same_bits(later[0], later[1]) and not same_bits(later[0], later[2])


def test_the_inner_methods_proximal_gradient_is_taken():
    assert same_bits(play("fedsol").server, play("fedsol(prox=kl(tau=3))").server)
    assert same_bits(play("fedsol(fedprox(mu=1.0))").server, play("fedsol(prox=prox(mu=1.0))").server)
    mine, theirs = (play(f"fedsol({inside}, where=all)").server for inside in ("fedprox(mu=0.7)", "prox=l2"))
    for name, value in theirs["model"].items():  # its length does not matter
        torch.testing.assert_close(mine["model"][name], value, rtol=1e-4, atol=1e-5)


SPECS = ["fedsol(scaling=fixed)", "fedsol(scaling=fixed, where=all)", "fedsol(scaffold, where=all)",
         "fedsol(fedprox(mu=1), where=body, scaling=fixed)", "fedsol(strategy=A4)", "fedsol(strategy=A5)",
         "fedsol(projection=true)"]  # fmt: skip


@pytest.mark.parametrize("spec", SPECS)
def test_batchnorm_is_updated_once_a_step_and_at_the_unmoved_weights(spec):
    def buffers_after_one_step(spec):
        task = building.prepare(config(spec), dataset=DATA).task
        message = task.method.download(task.server_context(1, (0,)), task.method.init(task.server_context(0)), 0)
        c = task.visit(Job("train", 1, 0, message), task.federation.train(0))
        away = {name: value + 0.1 * torch.sin(torch.arange(value.numel()) * 1.0).view_as(value)
                for name, value in message["model"].items()}  # fmt: skip
        task.method.gradient(c, away, next(iter(c.batches())))
        return c.buffers

    mine, plain = buffers_after_one_step(spec), buffers_after_one_step("fedavg")
    assert all(torch.equal(mine[name], value) for name, value in plain.items())


def test_a_projection_does_not_follow_rounding_noise():
    # at w = w_g the proximal gradient is 0 up to rounding, and so says nothing about the local gradient
    noise, local = {"w": torch.tensor([-1e-9, 0.0])}, {"w": torch.tensor([1.0, 2.0])}
    assert torch.equal(remove_conflict(local, noise, threshold=1e-6)["w"], local["w"])
    assert remove_conflict(local, {"w": torch.tensor([-1e-3, 0.0])}, threshold=1e-6)["w"].tolist() == [0.0, 2.0]
    one = {"batch": 64, "epochs": 1, "lr": 0.05}
    mine, plain = (
        play(spec, model="mlp", rounds=1, local=one).server["model"] for spec in ("fedsol(projection=true)", "fedavg")
    )
    assert all(torch.equal(mine[name], value) for name, value in plain.items())


def test_options_that_contradict_each_other_are_refused():
    for spec, words in {
        "fedsol(projection=true, strategy=A3)": "strategy=A3",
        "fedsol(fedsol)": "its own training",
        "fedsol(test_sharp)": "would leave out",
        "fedsol(strategy=A7)": "A7",
        "fedsol(rho=-1)": "greater than or equal",
    }.items():
        with pytest.raises(InputError, match=words):
            methods.build(spec)
    with pytest.raises(InputError, match="nothing to move"):
        play("fedsol(test_fixed_head)")
    assert methods.build("fedsol(test_fixed_head, where=body)").where == "body"


if "test_sharp" not in methods:

    @methods.register("test_sharp")
    class Sharp(Method):
        """Has a gradient of its own and does not say what it adds."""

        def gradient(self, c, params, batch):
            return super().gradient(c, params, batch)

    @methods.register("test_fixed_head")
    class FixedHead(Method):
        """The head is not trained."""

        frozen = ("head.*",)


# ---------------------------------------------------------------------------------------------- fine-tuning


def test_fine_tuning_changes_the_clients_tests_and_nothing_else():
    tuned, plain = play("finetuned(fedavg, epochs=3)"), play("fedavg")
    assert same_bits(tuned.server, plain.server)
    assert [row["accuracy"] for row in tuned.rounds] == [row["accuracy"] for row in plain.rounds]
    assert ["personal" in row for row in tuned.rounds] == [False, False, True]
    assert tuned.summary["personal"].keys() == plain.summary["personal"].keys() >= {"mean", "std"}
    assert tuned.summary["personal"]["mean"] != plain.summary["personal"]["mean"]
    every = play("finetuned(fedavg)", evaluation={"clients_every": 1})
    assert all("personal" in row for row in every.rounds)


def test_fine_tuning_for_no_epoch_is_the_inner_method():
    tuned, plain = (play(spec).summary["personal"] for spec in ("finetuned(fedsol, epochs=0)", "fedsol"))
    assert tuned == pytest.approx(plain)


def test_a_tuned_model_is_the_received_one_after_plain_sgd():
    run = config("finetuned(fedprox(mu=10.0))", local={"batch": 8, "lr": 0.1, "shuffle": False, "momentum": 0.5})
    task = building.prepare(run, dataset=DATA).task
    message = {**task.initial}
    for client in range(task.num_clients):
        data = task.federation.train(client)
        mine = task.method.personalise(task.visit(Job("personal", 1, client, message), data))
        plain = replace(task, method=methods.build("fedavg"))
        trained = plain.work(Job("train", 1, client, message)).groups["delta"]
        for name, value in trained.items():
            torch.testing.assert_close(mine[name] - message["model"][name], value)
