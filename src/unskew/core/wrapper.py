"""A wrapper is a method with a method inside it; every slot it does not change is the inner method's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from unskew.base.batch import Batch, Output
from unskew.base.registry import param, validated
from unskew.base.tree import Groups, Tree
from unskew.core.context import ClientContext, Context, ServerContext
from unskew.core.method import Method
from unskew.core.term import Term
from unskew.models.base import Model


def _forward(name: str) -> Any:
    return property(lambda self: getattr(self.inner, name), doc=f"The inner method's `{name}`.")


@validated
class Wrapper(Method):
    """Forwards every slot to `inner`; its own `terms` reach the inner method's loss through the context."""

    inner: Method = param(doc="the method inside")

    def __init_subclass__(cls) -> None:
        """Refuses slots that would never be called: the inner method's `train` calls its own."""
        dead = {"criterion", "own_terms", "loss", "gradient"} & vars(cls).keys()
        if dead and "train" not in vars(cls):
            raise TypeError(f"wrapper {cls.__name__} defines {sorted(dead)}, which the method inside never calls; "
                            "change the context in `prepare`, or define `train` too")  # fmt: skip

    personal = _forward("personal")
    frozen = _forward("frozen")
    output = _forward("output")
    buffer_policy = _forward("buffer_policy")
    stackable = _forward("stackable")
    reducers = _forward("reducers")
    survey_reducers = _forward("survey_reducers")

    def outer_terms(self) -> tuple[Term, ...]:
        """This wrapper's terms and those of wrappers inside it."""
        return (*self.terms, *self.inner.outer_terms())

    def remodel(self, model: Model, num_classes: int) -> Model:
        """The inner method's."""
        return self.inner.remodel(model, num_classes)

    def init(self, s: ServerContext) -> Groups:
        """The inner method's."""
        return self.inner.init(s)

    def download(self, s: ServerContext, server: Groups, client: int) -> Groups:
        """The inner method's."""
        return self.inner.download(s, server, client)

    def digest(self, s: ServerContext, server: Groups, surveyed: Groups) -> Groups:
        """The inner method's."""
        return self.inner.digest(s, server, surveyed)

    def brief(self, s: ServerContext, server: Groups, client: int) -> Groups:
        """The inner method's."""
        return self.inner.brief(s, server, client)

    def update(self, s: ServerContext, server: Groups, merged: Groups) -> Groups:
        """The inner method's."""
        return self.inner.update(s, server, merged)

    def publish(self, s: ServerContext, server: Groups) -> Groups:
        """The inner method's."""
        return self.inner.publish(s, server)

    def init_client(self, c: ClientContext) -> Groups:
        """The inner method's."""
        return self.inner.init_client(c)

    def survey(self, c: ClientContext) -> Groups:
        """The inner method's."""
        return self.inner.survey(c)

    def prepare(self, c: ClientContext) -> ClientContext:
        """The inner method's."""
        return self.inner.prepare(c)

    def start(self, c: ClientContext) -> Tree:
        """The inner method's."""
        return self.inner.start(c)

    def criterion(self, c: ClientContext, out: Output, batch: Batch) -> Tensor:
        """The inner method's."""
        return self.inner.criterion(c, out, batch)

    def own_terms(self) -> tuple[Term, ...]:
        """The inner method's."""
        return self.inner.own_terms()

    def loss(self, c: ClientContext, params: Tree, batch: Batch) -> Tensor:
        """The inner method's."""
        return self.inner.loss(c, params, batch)

    def proximal(self, c: ClientContext, params: Tree, batch: Batch) -> Tree | None:
        """The inner method's."""
        return self.inner.proximal(c, params, batch)

    def gradient(self, c: ClientContext, params: Tree, batch: Batch) -> Tree:
        """The inner method's."""
        return self.inner.gradient(c, params, batch)

    def train(self, c: ClientContext, params: Tree) -> Tree:
        """The inner method's."""
        return self.inner.train(c, params)

    def upload(self, c: ClientContext, params: Tree) -> Groups:
        """The inner method's."""
        return self.inner.upload(c, params)

    def keep(self, c: ClientContext, params: Tree) -> Groups:
        """The inner method's."""
        return self.inner.keep(c, params)

    def weight(self, c: ClientContext, params: Tree) -> Tensor:
        """The inner method's."""
        return self.inner.weight(c, params)

    def personalise(self, c: ClientContext) -> Tree:
        """The inner method's."""
        return self.inner.personalise(c)

    def predict(self, c: ClientContext, params: Tree, x: Tensor) -> Tensor:
        """The inner method's."""
        return self.inner.predict(c, params, x)

    def shared(self, context: Context, params: Tree) -> Tree:
        """The inner method's."""
        return self.inner.shared(context, params)

    def merge_personal(self, c: ClientContext) -> Tree:
        """The inner method's."""
        return self.inner.merge_personal(c)


def walk_nested(method: Method) -> Iterator[Method]:
    """The method, the one inside it, and so on inwards."""
    yield method
    if isinstance(method, Wrapper):
        yield from walk_nested(method.inner)
