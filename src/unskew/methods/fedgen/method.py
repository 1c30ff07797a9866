"""FedGen: a generator of features, trained at the server on all clients' heads, teaches each client what others know.

Zhu, Hong, Zhou, "Data-Free Knowledge Distillation for Heterogeneous Federated Learning", ICML 2021.

    paper                      here
    G_w(z | y), eps            server["generator"], c.message["generator"]: `build` in generator.py; noise from [0, 1)
    eq. 4, and the diversity   `train_generator` in generator.py: loss of the clients' heads, weighted by their labels
    eq. 5                      `Generated`: CE(head(G(y~)), y~) and KL(head(G(y)) || o), added to the client's loss
    alpha, beta                alpha, beta, both times decay^t

A round: clients train with what the generator makes (not in the first round) and send the model and how often they hold
each label; the server takes their heads out of the models, trains the generator on these, and averages the models.

Sizes and rates are those of the official code. Its first linear layer has a bias, which BatchNorm takes out again: ours
has none. The code knows beforehand which labels occur anywhere; here the server learns it from the counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from unskew.base import seeds
from unskew.base.batch import Batch, Output, cross_entropy
from unskew.base.registry import param, validated
from unskew.base.tree import Groups, Tree
from unskew.core.auxiliary import Auxiliary
from unskew.core.context import ClientContext, ServerContext
from unskew.core.method import Method, methods
from unskew.core.reducers import buffers, mean, per_client
from unskew.core.term import Term
from unskew.methods.feature_size import count_features
from unskew.methods.fedgen.generator import Teachers, Training, build, join_label, pick_labels, train_generator

if TYPE_CHECKING:
    from unskew.core.jobs import Reply


@validated
class Generated(Term):
    """(B_g/B) alpha_t CE(head(G(y~)), y~) + beta_t KL(head(G(y)) || o); nothing until there is a generator."""

    alpha: float = param(default=10.0, ge=0, doc="strength of the generated labels")
    beta: float = param(default=10.0, ge=0, doc="strength of the generated predictions")
    decay: float = param(default=0.98, gt=0, le=1, doc="factor of both in every round")
    gen_batch: int = param(default=32, ge=1, doc="features that are made in a step")
    noise: int = param(default=64, ge=1, doc="dimensions of the noise")
    hidden: int = param(default=512, ge=1, doc="width of the generator")

    def __call__(self, c: ClientContext, params: Tree, batch: Batch, out: Output) -> Tensor:
        """Both parts; B is the run's batch size, as in the official code."""
        if "generator" not in c.message:
            return out.logits.new_zeros(())
        drawn, y, same_labels = self.make(c, batch, out.features)
        teacher = cross_entropy(c.classify(params, drawn, "batch"), y).mean()
        with torch.no_grad():
            target = F.log_softmax(c.classify(params, same_labels, "batch"), -1)
        apart = (target.exp() * (target - F.log_softmax(out.logits, -1))).sum(-1)
        ratio = len(drawn) / c.settings.batch
        return ratio * self._now(c, self.alpha) * teacher + self._now(c, self.beta) * batch.mean(apart)

    def _now(self, c: ClientContext, strength: float) -> float:
        return strength and max(1e-4, strength * self.decay ** (c.round - 1))

    def make(self, c: ClientContext, batch: Batch, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Features of labels drawn from all that occur anywhere, these labels, features of the batch's own labels."""
        rows = self.gen_batch + max(c.settings.batch, len(batch.y))
        uniform = c.draw(f"fedgen/{c.step}", lambda rng: torch.rand(rows, self.noise + 1, generator=rng))
        drawn = pick_labels(uniform[: self.gen_batch, -1], c.message["labels"]["known"])
        # noise of the batch's labels follows in the order of its samples: padding takes none from others
        noise = uniform[: self.gen_batch + len(batch.y), :-1].to(like.dtype)
        x = join_label(noise, torch.cat([drawn, batch.y]), c.num_classes)
        network = Auxiliary(build, self.noise, c.num_classes, self.hidden, like.shape[1])
        made = network(c.message["generator"], x, training=False)
        return made[: self.gen_batch], drawn, made[self.gen_batch :]


class head_changes(per_client):
    """How each client's head moved."""

    def add(self, value: Tree, reply: Reply) -> None:
        """Takes in one client's update."""
        super().add({name: change.clone() for name, change in value.items() if name.startswith("head.")}, reply)

    def add_stack(self, value: Tree, replies: Sequence[Reply]) -> None:
        """Takes in many clients' updates at once, [K, ...]."""
        super().add_stack({name: change for name, change in value.items() if name.startswith("head.")}, replies)


@methods.register("fedgen")
class FedGen(Method):
    """FedAvg whose clients also learn from features that a generator at the server makes for any label."""

    alpha: float = param(default=10.0, ge=0, doc="strength of the generated labels", source="official code")
    beta: float = param(default=10.0, ge=0, doc="strength of the generated predictions", source="official code")
    decay: float = param(
        default=0.98, gt=0, le=1, doc="factor of alpha, beta and gen_lr in every round", source="official code"
    )
    gen_batch: int = param(default=32, ge=2, doc="features that are made in a step", source="official code")
    gen_steps: int = param(default=50, ge=1, doc="steps of the generator in a round", source="official code")
    gen_lr: float = param(default=3e-4, gt=0, doc="its learning rate (Adam)", source="official code")
    gen_weight_decay: float = param(default=0.01, ge=0, doc="its weight decay", source="official code")
    noise: int = param(default=64, ge=1, doc="dimensions of its noise", source="official code")
    hidden: int = param(default=512, ge=1, doc="its width", source="official code")

    reducers = {"delta": mean, "buffers": buffers, "heads": ("delta", head_changes), "counts": per_client}

    def own_terms(self) -> tuple[Term, ...]:
        """What the generator teaches (eq. 5)."""
        sizes = {"gen_batch": self.gen_batch, "noise": self.noise, "hidden": self.hidden}
        return (Generated(alpha=self.alpha, beta=self.beta, decay=self.decay, **sizes),)

    def init(self, s: ServerContext) -> Groups:
        """The initial model, and a generator that nobody has taught."""
        server = super().init(s)
        drawn, like = self._generator(s).init(seeds.derive(s.seed, "fedgen")), next(iter(server["model"].values()))
        params = {name: v.to(like.dtype) if v.is_floating_point() else v for name, v in drawn.items()}
        seen = {"seen": torch.zeros(s.num_classes, dtype=torch.bool)}
        return {**server, "generator": params, "moments": {}, "labels": seen}

    def download(self, s: ServerContext, server: Groups, client: int) -> Groups:
        """The model; once it was taught, the generator, and which labels occur."""
        message, seen = super().download(s, server, client), server["labels"]["seen"]
        if not seen.any():
            return message
        known = seen.nonzero().squeeze(1).to(torch.int32)
        return {**message, "generator": server["generator"], "labels": {"known": known}}

    def upload(self, c: ClientContext, params: Tree) -> Groups:
        """The model's difference, and the samples of each class."""
        return {**super().upload(c, params), "counts": {"classes": c.counts.float()}}

    def update(self, s: ServerContext, server: Groups, merged: Groups) -> Groups:
        """Trains the generator on the round's heads, then averages the models."""
        model, changes = server["model"], [change for change, _ in merged["heads"].values()]
        heads = {name: torch.stack([model[name] + own[name] for own in changes]) for name in changes[0]}
        if not heads:  # frozen: all clients have the same one
            heads = {n: v.expand(len(changes), *v.shape) for n, v in model.items() if n.startswith("head.")}
        counts = torch.stack([own["classes"] for own, _ in merged["counts"].values()])
        how = Training(
            self.gen_steps, self.gen_batch, self.noise, self.gen_lr * self.decay ** (s.round - 1), self.gen_weight_decay
        )
        params, moments = server["generator"], server["moments"]
        if counts.any():
            taught = Teachers(heads, counts)
            params, moments = train_generator(s, self._generator(s), params, moments, model, taught, how)
        labels = {"seen": server["labels"]["seen"] | (counts.sum(0) > 0)}
        return {**super().update(s, server, merged), "generator": params, "moments": moments, "labels": labels}

    def _generator(self, s: ServerContext) -> Auxiliary:
        return Auxiliary(build, self.noise, s.num_classes, self.hidden, count_features(s.initial["model"]))
