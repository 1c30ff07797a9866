"""FedSOL's Table 4: the direction of the perturbation around each method, by hand; the server's rule stays."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from awkward import play
from support import FixedData, Recording, golden_task, memory_store
from unskew.base import tree
from unskew.core.jobs import Job
from unskew.core.method import methods
from unskew.core.round_loop import rounds
from unskew.methods.momentum_steps import count_plain_steps

INPUTS, HIDDEN, CLASSES = 4, 3, 3
LR, MOMENTUM = 0.1, 0.5
RHO, MU, ALPHA = 0.7, 0.5, 0.3
SIZES = (6, 2)
INSIDE = {
    "fedprox": f"fedprox(mu={MU})",
    "scaffold": "scaffold",
    "fednova": "fednova(control=ccvr)",
    "feddyn": f"feddyn(alpha={ALPHA})",
}
EVERY = pytest.mark.parametrize("name", INSIDE)


def draw(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def draw_params(seed):
    bodies = {"body.fc1.weight": (HIDDEN, INPUTS), "body.fc1.bias": (HIDDEN,)}
    shapes = {**bodies, "head.weight": (CLASSES, HIDDEN), "head.bias": (CLASSES,)}
    return {name: draw(*shape, seed=seed + place) for place, (name, shape) in enumerate(shapes.items())}


def draw_data(seed, size):
    batches = [{"x": draw(4, INPUTS, seed=seed + k).tolist(), "y": [0, 1, 2, k % CLASSES]} for k in range(size)]
    return FixedData(batches, CLASSES, size)


def make_task(spec):
    start = {name.replace("body.", "").replace("head", "classifier"): v for name, v in draw_params(10).items()}
    file = SimpleNamespace(
        hyper={"lr": LR, "momentum": MOMENTUM, "weight_decay": 0.0},
        inputs={
            "dims": {"i": INPUTS, "h": HIDDEN, "c": CLASSES},
            "params_global": {n: v.tolist() for n, v in start.items()},
        },
    )
    data = [draw_data(100 * (k + 1), size) for k, size in enumerate(SIZES)]
    return golden_task(methods.build(spec), file, data, [[0, 1]] * 3)


def cross_entropy(p, batch):
    hidden = (batch.x @ p["body.fc1.weight"].T + p["body.fc1.bias"]).relu()
    return F.cross_entropy(hidden @ p["head.weight"].T + p["head.bias"], batch.y)


def grad_cross_entropy(params, batch):
    leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
    return dict(zip(leaves, torch.autograd.grad(cross_entropy(leaves, batch), list(leaves.values())), strict=True))


@EVERY
@pytest.mark.parametrize("scaling", ["fixed", "tensor"])
def test_only_the_gradient_at_the_stated_perturbation_is_applied(name, scaling):
    task = make_task(f"fedsol({INSIDE[name]}, where=all, rho={RHO}, scaling={scaling})")
    method = task.method
    message = method.download(task.server_context(1, (0,)), method.init(task.server_context(0)), 0)
    w_g, w = message["model"], draw_params(20)
    theirs, own = draw_params(30), draw_params(40)  # the server's part and the client's
    if name in ("scaffold", "fednova"):
        message["control"] = theirs
    state = {"fedprox": {}, "feddyn": {"gradient": own}}.get(name, {"control": own})
    g_p = {
        "fedprox": lambda n: MU * (w[n] - w_g[n]),
        "scaffold": lambda n: theirs[n] - own[n],  # c - c_k
        "fednova": lambda n: theirs[n] - own[n],  # dbar - d_k
        "feddyn": lambda n: -own[n] + ALPHA * (w[n] - w_g[n]),
    }[name]
    c = task.visit(Job("train", 1, 0, message, state), task.federation.train(0))
    batch = next(iter(c.batches()))
    for n, value in method.proximal_gradient(c, w, batch).items():
        torch.testing.assert_close(value, g_p(n))
    length = torch.sqrt(sum(g_p(n).square().sum() for n in w))
    away = {n: (w[n] - w_g[n]).abs() for n in w}
    lam = {n: 1.0 if scaling == "fixed" else away[n] / away[n].norm() for n in w}
    moved = {n: w[n] + RHO * lam[n] * g_p(n) / length for n in w}
    for n, value in grad_cross_entropy(moved, batch).items():
        torch.testing.assert_close(method.gradient(c, w, batch)[n], value)


def mean(trees, weights):
    return {n: sum(p * tree[n] for p, tree in zip(weights, trees, strict=True)) / sum(weights) for n in trees[0]}


@EVERY
def test_what_is_sent_and_kept_and_the_servers_rule_stay_the_base_methods(name, tmp_path):
    task = make_task(f"fedsol({INSIDE[name]}, where=all, rho={RHO})")
    executor = Recording(task)
    server = task.method.init(task.server_context(0))
    kept = [tree.zeros_like(server["model"])] * 2
    a = count_plain_steps(torch.tensor(SIZES, dtype=torch.float64), MOMENTUM)  # a step for each sample: see draw_data
    for done in rounds(task, executor, memory_store(tmp_path), server, 1, 3):
        delta = [reply.groups["delta"] for reply in executor.replies]
        wanted = tree.add(server["model"], mean(delta, SIZES))
        if name == "scaffold":
            new = [{n: kept[k][n] - server["control"][n] - d[n] / (LR * a[k]) for n in d} for k, d in enumerate(delta)]
            control = tree.add(
                server["control"], mean([tree.sub(n, o) for n, o in zip(new, kept, strict=True)], (1, 1))
            )
            assert_close(done.server["control"], control)
        if name == "fednova":
            new = [tree.scale(d, -1 / (LR * a[k])) for k, d in enumerate(delta)]
            per_step, far = mean(new, SIZES), sum(n * x for n, x in zip(SIZES, a, strict=True)) / sum(SIZES)
            wanted = tree.add_scaled(server["model"], per_step, -LR * far)
            assert_close(done.server["control"], per_step)
        if name == "feddyn":
            new = [tree.add_scaled(kept[k], d, -ALPHA) for k, d in enumerate(delta)]
            h = tree.add_scaled(server["h"], mean(delta, (1, 1)), -ALPHA)
            wanted = tree.add_scaled(wanted, h, -1 / ALPHA)
            assert_close(done.server["h"], h)
        if name != "fedprox":
            group = "gradient" if name == "feddyn" else "control"
            kept = [reply.state[group] for reply in executor.replies]
            for mine, hand in zip(kept, new, strict=True):
                assert_close(mine, hand)
        assert_close(done.server["model"], wanted)
        server = done.server


def assert_close(mine, theirs):
    for name, value in theirs.items():
        torch.testing.assert_close(mine[name], value)


@EVERY
def test_without_radius_the_proximal_part_is_gone_and_the_server_stays(name):
    mine = play(f"fedsol({INSIDE[name]}, where=all, rho=0)", rounds=1)
    plain = play("fedavg", rounds=1)
    assert mine.rounds[1]["train_loss"] == plain.rounds[1]["train_loss"]  # the same local steps
    same = all(torch.equal(mine.server["model"][key], value) for key, value in plain.server["model"].items())
    assert same is (name in ("fedprox", "scaffold"))


def test_fednova_without_control_has_no_proximal_part_and_takes_kl():
    assert str(methods.build("fedsol(fednova)").proximal_losses()[0]) == "kl"
    mine, theirs = (play(f"fedsol({inside})", rounds=2).server["model"] for inside in ("fednova", "fedavg"))
    assert any(not torch.equal(mine[name], value) for name, value in theirs.items())
