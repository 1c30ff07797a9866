"""Faults in plugins' slots through the command line: one line with method, slot, client and round; exit code 1."""

# ruff: noqa: E501 - the tables have a line for a fault

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from cli.calling import Call

HEAD = """
import collections
import sys

import numpy as np
import torch

from unskew import About, Architecture, Measure, Method, Model, Processor, Term, Wrapper, Outcome, param, reducers, registries, sgd, Source, Split, tree
"""

CLIENT = {
    # errors
    "raises_in_train": ("def train(self, c, params):\n        raise ValueError('no\\nluck')",
                        r"ValueError: no luck, in {m}.train \(faults.py, line \d+\)"),
    "raises_in_loss": ("def loss(self, c, params, batch):\n        return 1 / 0",
                       r"ZeroDivisionError: division by zero, in {m}.loss \(faults.py, line \d+\)"),
    "raises_in_a_lambda": ("def gradient(self, c, params, batch):\n        return c.grad(lambda p: p['nosuch'].sum(), params)",
                           r"KeyError: 'nosuch', in {m}.gradient \(faults.py, line \d+\)"),
    "raises_in_keep": ("def keep(self, c, params):\n        return c.state['nosuch']", r"KeyError: 'nosuch', in {m}.keep"),
    "exits": ("def upload(self, c, params):\n        sys.exit(3)", r"SystemExit: 3, in {m}.upload"),
    # what slots return
    "train_none": ("def train(self, c, params):\n        sgd(c, params, self.gradient)",
                   r"{m}.train must return parameters .* got None \(is a return missing\?\) \(faults.py, line \d+\)"),
    "train_module": ("def train(self, c, params):\n        return torch.nn.Linear(2, 2)", r"{m}.train must .* got a module"),
    "train_groups": ("def train(self, c, params):\n        return {'model': params}", r"{m}.train must .* got groups with|under 'model'"),
    "train_part": ("def train(self, c, params):\n        return {n: v for n, v in params.items() if 'head' in n}",
                   r"{m}.train returns parameters without body"),
    "train_double": ("def train(self, c, params):\n        return {n: v.double() for n, v in params.items()}",
                     r"{m}.train returns parameters in which 'body.*' must be float32, got float64"),
    "upload_none": ("def upload(self, c, params):\n        super().upload(c, params)", r"{m}.upload must return groups .* got None"),
    "upload_tree": ("def upload(self, c, params):\n        return tree.sub(params, c.message['model'])",
                    r"{m}.upload must return groups .* got a tree with the tensor"),
    "upload_nothing": ("def upload(self, c, params):\n        return {}", r"{m}.upload must return the group 'delta'"),
    "upload_broadcast": ("def upload(self, c, params):\n        return {'delta': {n: v.sum().view(1) for n, v in params.items()}}",
                         r"{m}.upload returns 'delta' in which '.*' must have shape \[.*\], got \[1\]"),
    "upload_number": ("def upload(self, c, params):\n        return {**super().upload(c, params), 'loss': {'mean': 0.5}}",
                      r"{m}.upload must return groups .*'loss'.*torch.tensor\(0.5\)"),
    "upload_unknown": ("def upload(self, c, params):\n        return {'delta': {**tree.zeros_like(params), 'more': torch.zeros(2)}}",
                       r"{m}.upload returns 'delta' with the unknown name 'more'"),
    "keep_nested": ("def keep(self, c, params):\n        return {'a': {'b': {'c': torch.zeros(1)}}}", r"{m}.keep must return groups.*not nested"),
    "keep_reserved": ("def keep(self, c, params):\n        return {'wire/x': {'a': torch.zeros(1)}}", r"{m}.keep must not name a group 'wire/x'"),
    "keep_names": ("def keep(self, c, params):\n        return {3: {'a': torch.zeros(1)}}", r"{m}.keep must return groups.* names are strings, got the name 3"),
    "prepare_none": ("def prepare(self, c):\n        c.with_made(x={})", r"{m}.prepare must return a context.* got None"),
    "start_shape": ("def start(self, c):\n        return {n: v[:1] for n, v in c.received['model'].items()}",
                    r"{m}.start returns parameters in which '.*' must have shape"),
    "weight_none": ("def weight(self, c, params):\n        pass", r"{m}.weight must return a number .* got None"),
    "weight_negative": ("def weight(self, c, params):\n        return -c.num_samples", r"{m}.weight must return a number that is not below 0, got -\d+"),
    "weight_vector": ("def weight(self, c, params):\n        return c.counts", r"{m}.weight must return a number .* got a tensor of shape \[10\]"),
    "weight_bool": ("def weight(self, c, params):\n        return True", r"{m}.weight must return a number .* got bool True"),
    "loss_vector": ("def loss(self, c, params, batch):\n        return c.forward(params, batch.x).logits.sum(1)",
                    r"{m}.loss must return a tensor without dimensions"),
    "loss_float": ("def loss(self, c, params, batch):\n        return 0.5", r"{m}.loss must return a tensor without .* got float 0.5"),
    "criterion_none": ("def criterion(self, c, out, batch):\n        batch.cross_entropy(out.logits)",
                       r"{m}.criterion must return a tensor .* got None"),
    "gradient_none": ("def gradient(self, c, params, batch):\n        super().gradient(c, params, batch)",
                      r"{m}.gradient must return a tree .* got None"),
    "gradient_shape": ("def gradient(self, c, params, batch):\n        return {n: g.sum() for n, g in super().gradient(c, params, batch).items()}",
                       r"{m}.gradient returns a tree in which '.*' must have shape \[.*\], got \[\]"),
    "gradient_function": ("def train(self, c, params):\n        return sgd(c, params, lambda c, p, batch: None)",
                          r"{m}.train takes steps along a function which must return a tree .* got None"),
    "gradient_empty": ("def gradient(self, c, params, batch):\n        return {}", r"{m}.gradient must return a tree with some of the parameters' names, got nothing"),
    "gradient_meta": ("def gradient(self, c, params, batch):\n        return {n: g.to('meta') for n, g in super().gradient(c, params, batch).items()}",
                      r"{m}.gradient must return a tree .* got a tensor without data \(device meta\)"),
    "gradient_sparse": ("def gradient(self, c, params, batch):\n        return {n: g.to_sparse() for n, g in super().gradient(c, params, batch).items()}",
                        r"{m}.gradient must return a tree .* got a sparse tensor under '.*'; make it dense"),
    "loss_detached": ("def loss(self, c, params, batch):\n        return super().loss(c, params, batch).detach()", r"{m}.loss must return a loss that depends on .*without a gradient"),
    "criterion_int": ("def criterion(self, c, out, batch):\n        return torch.tensor(3)", r"{m}.criterion must return a loss that depends on .*without a gradient \(int64"),
    "loss_leaf": ("def loss(self, c, params, batch):\n        return torch.tensor(1.0, requires_grad=True)", r"{m}.loss must return a loss that depends on the parameters .* none of them changes"),
    "loss_leaf_corrected": ("def loss(self, c, params, batch):\n        return torch.tensor(1.0, requires_grad=True)\n\n    def correction(self, c, params, batch):\n        return {n: 0.01 * v for n, v in params.items()}", r"{m}.loss must return a loss that depends on the parameters .* none of them changes"),
    "notes_text": ("def upload(self, c, params):\n        c.diagnostics.note('a', 'txt')\n        return super().upload(c, params)", r"{m}.upload notes under 'a' .* no single number: 'txt'"),
    "correction_part": ("def correction(self, c, params, batch):\n        return {'head.bias': params['head.bias']}",
                        r"{m}.correction returns a tree without body"),
    # what slots change
    "changes_message": ("def upload(self, c, params):\n        for v in c.message['model'].values():\n            v.mul_(0.5)\n        return super().upload(c, params)",
                        r"{m}.upload changes c.message\[\"model\"\]\[\".*\"\] in place; let it return new values"),
    "changes_params": ("def upload(self, c, params):\n        reply = super().upload(c, params)\n        for v in params.values():\n            v.zero_()\n        return reply",
                       r"{m}.upload changes params\[\".*\"\] in place"),
    "changes_data": ("def keep(self, c, params):\n        for v in c.initial['model'].values():\n            v.data.add_(1)\n        return {}",
                     r"{m}.keep changes c.\w+\[\"model\"\]\[\".*\"\] in place"),
    "changes_numpy": ("def weight(self, c, params):\n        next(iter(params.values())).numpy()[:] = 0\n        return c.num_samples",
                      r"{m}.weight changes params\[\".*\"\] in place"),
    "changes_dict": ("def prepare(self, c):\n        c.message['more'] = {'a': torch.zeros(1)}\n        return c",
                     r"{m}.prepare changes c.message in place"),
    "draws_from_numpy": ("def start(self, c):\n        np.random.rand()\n        return super().start(c)",
                         r"{m}.start draws from the global generator of numpy, .*c.rng\(purpose\)"),
    "changes_counts": ("def train(self, c, params):\n        c.counts.add_(5)\n        return super().train(c, params)", r"{m}.train changes c.counts in place"),
    "changes_group": ("def prepare(self, c):\n        c.message['model'] = tree.scale(c.message['model'], 2)\n        return c",
                      r"{m}.prepare changes c.message\[\"model\"\] in place"),
    "changes_initial_group": ("def train(self, c, params):\n        c.initial['model'] = tree.scale(c.initial['model'], 2)\n        return super().train(c, params)",
                              r"{m}.train changes c.initial\[\"model\"\] in place"),
    "changes_self": ("def train(self, c, params):\n        self.__dict__['mu'] = 2.0\n        return super().train(c, params)", r"{m}.train changes {m}.mu in place"),
    "changes_self_beside": ("def upload(self, c, params):\n        object.__setattr__(self, '_seen', 1)\n        return super().upload(c, params)", r"{m}.upload changes {m}._seen in place"),
    "seeds_numpy": ("def train(self, c, params):\n        np.random.seed(0)\n        return super().train(c, params)", r"{m}.train draws from the global generator of numpy"),
    "changes_settings": ("def train(self, c, params):\n        object.__setattr__(c.settings, 'lr', 0.5)\n        return super().train(c, params)", r"{m}.train changes c.settings.lr in place"),
    "changes_data_set": ("def train(self, c, params):\n        (c.data.source if hasattr(c.data, 'source') else c.data.stack.source).x.add_(0)\n        return super().train(c, params)",
                         r"{m}.train changes the data set's inputs in place"),
    "changes_in_loss": ("def loss(self, c, params, batch):\n        with torch.no_grad():\n            params['head.bias'].add_(1.0)\n        return super().loss(c, params, batch)",
                        r"{m}.loss changes params\[\"head.bias\"\] in place"),
    "changes_in_step_unseen": ("def correction(self, c, params, batch):\n        params['head.bias'].detach().numpy()[:] += 1\n        return {}",
                               r"{m}.correction changes params\[\"head.bias\"\] in place"),
    "changes_in_step": ("def gradient(self, c, params, batch):\n        with torch.no_grad():\n            params['head.bias'].add_(1.0)\n        return super().gradient(c, params, batch)",
                        r"{m}.gradient changes params\[\"head.bias\"\] in place"),
}  # fmt: skip

SERVER = {
    "update_raises": ("def update(self, s, server, merged):\n        return merged['nosuch']", r"in round 1: KeyError: 'nosuch', in {m}.update \(faults.py, line \d+\)"),
    "update_none": ("def update(self, s, server, merged):\n        super().update(s, server, merged)", r"in round 1: {m}.update must return groups .* got None"),
    "update_forgets": ("def update(self, s, server, merged):\n        return {'model': server['model']}", r"in round 1: {m}.update must return the whole state, and forgets 'buffers'"),
    "update_shape": ("def update(self, s, server, merged):\n        return {**server, 'model': {n: v.sum() for n, v in server['model'].items()}}", r"{m}.update returns 'model' in which '.*' must have shape"),
    "update_double": ("def update(self, s, server, merged):\n        return {**server, 'model': {n: v.double() for n, v in server['model'].items()}}", r"must be float32, got float64"),
    "update_changes": ("def update(self, s, server, merged):\n        for n, v in server['model'].items():\n            v.add_(merged['delta'][n])\n        return server", r"{m}.update changes server\[\"model\"\]\[\".*\"\] in place"),
    "download_raises": ("def download(self, s, server, client):\n        raise ValueError('no')", r"in round 1 for client \d: ValueError: no, in {m}.download"),
    "download_no_model": ("def download(self, s, server, client):\n        return {'weights': server['model']}", r"{m}.download must return a message with the group 'model', got weights"),
    "download_tree": ("def download(self, s, server, client):\n        return server['model']", r"{m}.download must return groups .* got a tree"),
    "download_part": ("def download(self, s, server, client):\n        return {'model': {n: v for n, v in server['model'].items() if 'body' in n}}", r"{m}.download returns 'model' without head"),
    "init_none": ("def init(self, s):\n        super().init(s)", r"before the first round: {m}.init must return groups .* got None"),
    "init_state_dict": ("def init(self, s):\n        return collections.OrderedDict(s.initial['model'])", r"{m}.init must return groups .* got a tree"),
    "publish_nothing": ("def publish(self, s, server):\n        return {}", r"{m}.publish must return the global model"),
    "weigh_raises": ("def weigh(self, s, replies):\n        return replies.nosuch", r"in round 1: AttributeError: .*, in {m}.weigh"),
    "weigh_sorts": ("def weigh(self, s, replies):\n        replies.sort(key=lambda r: -r.client)\n        return [1.0] * len(replies)", r"in round 1: AttributeError: 'tuple' object has no attribute 'sort', in {m}.weigh"),
    "download_group": ("def download(self, s, server, client):\n        server['model'] = tree.scale(server['model'], 0.5)\n        return super().download(s, server, client)", r"{m}.download changes server\[\"model\"\] in place"),
    "remembered": ("def update(self, s, server, merged):\n        s.per_client.put(0, {'a': {'b': torch.ones(1)}})\n        s.per_client.get(0)['a']['b'].add_(1)\n        return super().update(s, server, merged)",
                   r"{m}.update changes s.per_client.get\(0\)\[\"a\"\]\[\"b\"\] in place"),
    "predict_shape": ("def predict(self, c, params, x):\n        return c.forward(params, x, 'eval').features", r"{m}.predict must return scores, a floating tensor of shape \[\d+, 10\], got a tensor"),
    "predict_sparse": ("def predict(self, c, params, x):\n        return super().predict(c, params, x).to_sparse()", r"{m}.predict must return scores, .* got a sparse tensor of shape \[\d+, 10\]"),
    "predict_raises": ("def predict(self, c, params, x):\n        raise ValueError('no')", r"ValueError: no, in {m}.predict"),
}  # fmt: skip

PARTS = """

@registries.terms.register("t_none")
class TNone(Term):
    "Forgets its return."
    def __call__(self, c, params, batch, out):
        batch.mean(out.features.sum(1))


@registries.terms.register("t_raises")
class TRaises(Term):
    "Fails."
    def __call__(self, c, params, batch, out):
        return out.nosuch


@registries.terms.register("t_writes")
class TWrites(Term):
    "Writes."
    def __call__(self, c, params, batch, out):
        batch.x.mul_(0.5)
        return out.features.mean()


@registries.methods.register("own_loss")
class OwnLoss(Method):
    "Forgets terms."
    def loss(self, c, params, batch):
        return batch.cross_entropy(c.forward(params, batch.x).logits)


@registries.methods.register("own_train")
class OwnTrain(Method):
    "Forgets terms."
    def train(self, c, params):
        return params


@registries.measures.register("m_raises")
class MRaises(Measure):
    "Fails."
    def figures(self, look):
        return look.nosuch


@registries.measures.register("m_raises_in_steps")
class MRaisesInSteps(Measure):
    "Fails."
    def step(self, c, params, batch, grads):
        raise ValueError("no")


@registries.measures.register("m_writes_grads")
class MWritesGrads(Measure):
    "Writes."
    def step(self, c, params, batch, grads):
        for value in grads.values():
            value.mul_(0)


@registries.measures.register("m_puts_grads")
class MPutsGrads(Measure):
    "Writes."
    def step(self, c, params, batch, grads):
        grads.update(tree.scale(grads, 0.0))


@registries.measures.register("m_writes_params")
class MWritesParams(Measure):
    "Writes."
    def trained(self, c, params):
        for value in params.values():
            value.data.mul_(0)


@registries.measures.register("m_writes_batch")
class MWritesBatch(Measure):
    "Writes."
    def before_step(self, c, params, batch):
        batch.x.mul_(0)


@registries.processors.register("p_raises")
class PRaises(Processor):
    "Fails."
    def encode(self, c, groups, memory, stream):
        raise ValueError("no")


class Bad(reducers.mean):
    def add(self, value, reply):
        raise ValueError("no")

    def add_stack(self, value, replies):
        raise ValueError("no")


@registries.methods.register("wrong_reducer")
class BadReducer(Method):
    "Fails."
    reducers = {"delta": Bad}


@registries.methods.register("wrong_remodel")
class BadRemodel(Method):
    "Fails."
    def remodel(self, model, num_classes):
        return model.nosuch


@registries.splits.register("s_raises")
class SRaises(Split):
    "Fails."
    def assign(self, dataset, clients, rng):
        return dataset.nosuch


@registries.sources.register("d_raises")
class DRaises(Source):
    "Fails."
    about = About("1 / 1", 2, (1, 8, 8), licence="CC0")
    def load(self, find):
        return self.nosuch


@registries.architectures.register("raises_a")
class ARaises(Architecture):
    "Fails."
    def build(self, shape, num_classes):
        return shape.nosuch


class Copies(reducers.Reducer):
    averages = True
    def __init__(self, s):
        self.total, self.weight = {}, 0.0

    def add(self, value, reply):
        self.total = tree.add_scaled(self.total or tree.zeros_like(value), value, reply.weight)
        self.weight += reply.weight

    def result(self):
        return tree.scale(self.total, 1 / self.weight)


class RList(Copies):
    def result(self):
        return [self.total]


class RScalars(Copies):
    def result(self):
        return {name: value.sum() for name, value in self.total.items()}


class RLacks(Copies):
    def result(self):
        return {"head.bias": self.total["head.bias"]}


class RDouble(Copies):
    def result(self):
        return {name: value.double() for name, value in super().result().items()}


class RWrites(Copies):
    def add(self, value, reply):
        reply.groups["delta"]["head.bias"].mul_(2)
        super().add(value, reply)


class RPuts(reducers.mean):
    def add(self, value, reply):
        value.update(tree.scale(value, 2.0))
        super().add(value, reply)


class RDraws(Copies):
    def result(self):
        np.random.rand()
        return super().result()


def merge(name, how):
    body = {"__doc__": "A fault.", "__module__": __name__, "reducers": {**Method.reducers, "delta": how}}
    registries.methods.register(name)(type(name, (Method,), body))


merge("merges_list", RList), merge("merges_scalars", RScalars), merge("merges_a_part", RLacks), merge("merges_double", RDouble)
merge("merges_writing", RWrites), merge("merges_putting", RPuts), merge("merges_drawing", RDraws)
merge("merges_nothing", reducers.per_client)


@registries.processors.register("p_decodes_in_place")
class PDecodes(Processor):
    "Writes."
    def encode(self, c, groups, memory, stream):
        return groups, {}

    def decode(self, groups):
        groups["delta"]["head.bias"].mul_(2)
        return groups


@registries.processors.register("p_writes_message")
class PWrites(Processor):
    "Writes."
    def encode(self, c, groups, memory, stream):
        c.message["model"]["head.bias"].mul_(2)
        return groups, {}


@registries.processors.register("p_one")
class POne(Processor):
    "Forgets what is kept."
    def encode(self, c, groups, memory, stream):
        return groups


@registries.processors.register("p_draws")
class PDraws(Processor):
    "Draws."
    def encode(self, c, groups, memory, stream):
        np.random.rand()
        return groups, {}


@registries.measures.register("m_draws")
class MDraws(Measure):
    "Draws."
    def figures(self, look):
        return {"drawn": np.random.rand()}


@registries.measures.register("m_writes_server")
class MWritesServer(Measure):
    "Writes."
    def figures(self, look):
        look.server["model"]["head.bias"].zero_()
        return {}


class Noisy(torch.nn.Module):
    def forward(self, x):
        return x.flatten(1) * (float(np.random.rand()) if self.training else 1.0)


@registries.architectures.register("noisy")
class ANoisy(Architecture):
    "Draws."
    def build(self, shape, num_classes):
        return Model(Noisy(), torch.nn.Linear(shape.numel() if hasattr(shape, "numel") else int(np.prod(shape)), num_classes))


@registries.splits.register("s_writes")
class SWrites(Split):
    "Writes."
    def assign(self, dataset, clients, rng):
        dataset.train.x.numpy()[:] = 0
        order = np.arange(len(dataset.train))
        return order, np.array([len(part) for part in np.array_split(order, clients)])


@registries.methods.register("hands_on")
class Around(Wrapper):
    "Hands everything on."
    def upload(self, c, params):
        return self.inner.upload(c, params)
"""
BESIDE = {
    "a term forgets its return": ("--method 'fedavg(terms=[t_none])'", r"client \d failed in round 1: term t_none must return a tensor"),
    "a term fails": ("--method 'fedavg(terms=[t_raises])'", r"client \d failed in round 1: AttributeError: .*, in term t_raises \(faults.py, line \d+\)"),
    "a term writes": ("--method 'fedavg(terms=[t_writes])'", r"client \d failed in round 1: term t_writes changes batch.x in place"),
    "a loss forgets terms": ("--method 'own_loss(terms=[prox(mu=100.0)])'", r"client \d failed in round 1: own_loss.loss does not use the terms it was given \(prox\(mu=100.0\)\)"),
    "a wrapper's terms are forgotten": ("--method 'hands_on(own_loss, terms=[prox])'", r"client \d failed in round 1: own_loss.loss does not use the terms it was given \(prox\)"),
    "training forgets terms": ("--method 'own_train(terms=[prox])'", r"client \d failed in round 1: own_train.train does not use the terms"),
    "a measure fails": ("--measure m_raises", r"a measure failed before the first round: AttributeError: .*, in measure m_raises.figures"),
    "a measure fails at a client": ("--measure m_raises_in_steps", r"client \d failed in round 1: ValueError: no, in measure m_raises_in_steps.step"),
    "a measure writes to gradients": ("--measure m_writes_grads", r"client \d failed in round 1: measure m_writes_grads.step changes grads\[.*\] in place; it may only look"),
    "a measure puts other gradients": ("--measure m_puts_grads", r"client \d failed in round 1: measure m_puts_grads.step changes grads\[.*\] in place"),
    "a measure writes to parameters": ("--measure m_writes_params", r"client \d failed in round 1: measure m_writes_params.trained changes params\[.*\] in place"),
    "a measure writes to a batch": ("--measure m_writes_batch", r"client \d failed in round 1: measure m_writes_batch.before_step changes batch.x in place"),
    "a wire processor fails": ("--wire p_raises", r"client \d failed in round 1: ValueError: no, in wire processor p_raises.encode"),
    "a reducer fails": ("--method wrong_reducer", r"the server failed in round 1: ValueError: no, in reducer Bad.add"),
    "a reducer gives a list": ("--method merges_list", r"the server failed in round 1: reducer RList.result must return a tree .* got list .*define update"),
    "a reducer gives scalars": ("--method merges_scalars", r"the server failed in round 1: reducer RScalars.result returns a tree in which '.*' must have shape"),
    "a reducer gives a part": ("--method merges_a_part", r"the server failed in round 1: reducer RLacks.result returns a tree without body"),
    "a reducer gives doubles": ("--method merges_double", r"the server failed in round 1: reducer RDouble.result returns .* must be float32, got float64"),
    "clients kept apart": ("--method merges_nothing", r"the server failed in round 1: reducer per_client.result must return a tree .*define update"),
    "a reducer writes": ("--method merges_writing", r"the server failed in round 1: reducer RWrites.add changes .* in place"),
    "a reducer puts": ("--method merges_putting", r"the server failed in round 1: reducer RPuts.add changes value\[.*\] in place"),
    "a reducer draws": ("--method merges_drawing", r"the server failed in round 1: reducer RDraws.result draws from the global generator of numpy"),
    "a wire processor decodes in place": ("--wire p_decodes_in_place", r"client \d failed in round 1: wire processor p_decodes_in_place.decode changes groups\[.*\] in place"),
    "a wire processor writes": ("--wire p_writes_message", r"client \d failed in round 1: wire processor p_writes_message.encode changes c.message\[.*\] in place"),
    "a wire processor gives one value": ("--wire p_one", r"client \d failed in round 1: wire processor p_one.encode must return .*\(groups, memory\), got groups with delta"),
    "a wire processor draws": ("--wire p_draws", r"client \d failed in round 1: wire processor p_draws.encode draws from the global generator of numpy"),
    "a measure draws": ("--measure m_draws", r"a measure failed before the first round: measure m_draws.figures draws from the global generator of numpy"),
    "a measure writes to the server": ("--measure m_writes_server", r"a measure failed before the first round: measure m_writes_server.figures changes look.server\[.*\] in place"),
    "a network draws": ("--model noisy", r"client \d failed in round 1: the model \(Noisy\) draws from the global generator of numpy.*torch"),
    "a network draws in a foreign slot": ("--model noisy --method raises_in_keep", r"client \d failed in round 1: raises_in_keep.train \(or the model that it asks\) draws"),
    "a split writes": ("--split s_writes", r"the split failed before the first round: split s_writes.assign changes the data set in place"),
    "remodel fails": ("--method wrong_remodel", r"the model failed before the first round: AttributeError: .*, in wrong_remodel.remodel"),
    "a split fails": ("--split s_raises", r"the split failed before the first round: AttributeError: .*, in split s_raises.assign"),
    "a data set fails": ("--data d_raises --split iid", r"the data set failed .*: AttributeError: .*, in data \w+ d_raises.load"),
    "inside a wrapper": ("--method 'finetuned(train_none)'", r"client \d failed in round 1: train_none.train must return"),
    "through a wrapper's slot": ("--method 'hands_on(raises_in_keep)'", r"client \d failed in round 1: KeyError: 'nosuch', in raises_in_keep.keep"),
}  # fmt: skip


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    """A file with a method for each fault."""
    folder = tmp_path_factory.mktemp("faults")
    methods = [
        f'@registries.methods.register("{name}")\nclass M{number}(Method):\n    "A fault."\n    {body}\n'
        for number, (name, (body, _)) in enumerate({**CLIENT, **SERVER}.items())
    ]
    (folder / "faults.py").write_text(HEAD + "\n\n".join(methods) + PARTS)
    return folder


@pytest.fixture
def fail(call: Call, plugin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs with these arguments, which must fail with one line; gives the line."""
    monkeypatch.chdir(plugin)
    np.random.seed()

    def run(arguments: str, executor: str) -> str:
        line = "run --plugin faults.py --model mlp --clients 4 --split dirichlet:0.5 --rounds 2 --batch 16 -q"
        workers = "--workers 2" if executor == "pool" else ""
        said = call(f"{line} --executor {executor} {workers} --out {tmp_path / 'run'} {arguments}")
        assert "Traceback" not in said.err and said.out == ""
        assert said.code == 1
        assert said.err.startswith("error: ") and said.err.count("\n") == 1, said.err
        assert (tmp_path / "run").exists() == (f"unskew resume {tmp_path / 'run'}" in said.err)
        return said.err

    return run


@pytest.mark.parametrize("executor", ["serial", "pool", "stacked"])
@pytest.mark.parametrize("name", CLIENT)
def test_a_clients_slot(fail, name, executor):
    expected = CLIENT[name][1].replace("{m}", name)
    if (
        executor == "pool" and "in place" in expected
    ):  # workers share messages: another client may meet the change first
        expected = expected.replace(f"{name}.upload", rf"{name}\.\w+")
    assert re.search(
        rf"error: client \d failed in round 1: .*(?:{expected})", said := fail(f"--method {name}", executor)
    ), said


@pytest.mark.parametrize("executor", ["serial", "pool", "stacked"])
@pytest.mark.parametrize("name", SERVER)
def test_a_slot_of_the_server_or_of_a_test(fail, name, executor):
    expected = SERVER[name][1].replace("{m}", name)
    assert re.search(rf"error: the (?:server|test of the global model) failed .*(?:{expected})",
                     said := fail(f"--method {name}", executor)), said  # fmt: skip


@pytest.mark.parametrize("executor", ["serial", "pool", "stacked"])
@pytest.mark.parametrize("case", BESIDE)
def test_what_works_beside_a_method(fail, case, executor):
    arguments, expected = BESIDE[case]
    assert re.search(rf"error: {expected}", said := fail(arguments, executor)), said


def test_the_traceback_is_shown_with_debug(call: Call, plugin: Path, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(plugin)
    said = call(
        f"--debug run --plugin faults.py --method raises_in_train --clients 3 --rounds 1 --out {tmp_path / 'run'} -q"
    )
    assert said.code == 1 and "Traceback" in said.err and "raise ValueError" in said.err


def test_a_model_that_fails_is_refused_before_the_run(call: Call, plugin: Path, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(plugin)
    said = call(f"run --plugin faults.py --model raises_a --clients 3 --rounds 1 --out {tmp_path / 'run'} -q")
    assert said.code == 2 and not (tmp_path / "run").exists()
    assert re.fullmatch(r"error: model raises_a fails on inputs of shape \(1, 8, 8\): AttributeError: .*\n", said.err)


@pytest.mark.parametrize("body, expected", [
    ("def calculate(self, c, params, batch, out):\n        return 0", "must define __call__(self, c, params, batch, out)"),
    ("def __call__(self, c, params, batch):\n        return 0", "__call__ must take (self, c, params, batch, out), got (self, c, params, batch)"),
])  # fmt: skip
def test_a_term_that_cannot_be_called_is_refused_before_the_run(call: Call, tmp_path: Path, body, expected):
    name = f"t_{len(body)}"
    (tmp_path / "t.py").write_text(
        f'{HEAD}\n@registries.terms.register("{name}")\nclass T(Term):\n    "A fault."\n    {body}\n'
    )
    said = call(f"run --plugin {tmp_path / 't.py'} --method 'fedavg(terms=[{name}])' --clients 2 --rounds 1 -q")
    assert said.code == 2 and expected in said.err and said.err.count("\n") == 1
