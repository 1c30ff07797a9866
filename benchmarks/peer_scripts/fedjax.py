"""FedJAX: federated averaging with its default `jit` backend; XLA uses all cores.

Its batches run on over the ends of epochs, so that all are full: 47 steps instead of 50 for the same samples of W1.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import fedjax  # type: ignore[import-not-found]
import haiku as hk  # type: ignore[import-not-found]
import jax  # type: ignore[import-not-found]
import jax.numpy as jnp  # type: ignore[import-not-found]
import numpy as np
from fedjax.algorithms import fed_avg  # type: ignore[import-not-found]

from benchmarks.peer_scripts import common


def forward(batch: Any) -> Any:
    """The same two networks; images are [N, H, W, C] here."""
    x = batch["x"]
    if x.ndim == 2:
        return hk.Sequential([hk.Linear(64), jax.nn.relu, hk.Linear(10)])(x)
    for channels in (32, 64):
        x = hk.Conv2D(channels, 5, padding="VALID")(x)
        x = jax.nn.relu(hk.max_pool(x, (2, 2, 1), (2, 2, 1), padding="VALID"))
    return hk.Sequential([hk.Flatten(), hk.Linear(512), jax.nn.relu, hk.Linear(10)])(x)


def inputs(x: Any) -> Any:
    """Channels last."""
    return np.ascontiguousarray(np.moveaxis(x, 1, -1)) if x.ndim == 4 else x


def converted(task: common.Task, params: Any) -> Any:
    """The saved weights in haiku's shapes: the modules come in the network's order, each with `w` and `b`."""
    left = iter(task.weights)
    result = {}
    for module in params:
        weight, bias = next(left), next(left)
        if weight.ndim == 4:
            weight = weight.transpose(2, 3, 1, 0)
        elif weight.shape[1] == 1024:  # flattened as (H, W, C) here
            weight = weight.reshape(512, 64, 4, 4).transpose(2, 3, 1, 0).reshape(1024, 512)
        else:
            weight = weight.T
        assert weight.shape == params[module]["w"].shape
        result[module] = {"w": jnp.asarray(weight), "b": jnp.asarray(bias)}
    return result


def main() -> None:
    """Plays the rounds."""
    clock = common.Clock()
    source, report = common.arguments()
    task = common.load(source)
    s = task.settings
    arrays = {str(k).encode(): {"x": inputs(x), "y": y} for k, (x, y) in enumerate(zip(task.x, task.y, strict=True))}
    data = fedjax.InMemoryFederatedData(arrays)
    test = fedjax.ClientDataset({"x": inputs(task.test_x), "y": task.test_y})
    model = fedjax.create_model_from_haiku(
        hk.transform(forward),
        {key: value[:1] for key, value in arrays[b"0"].items()},
        lambda batch, out: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], out),
        {"loss": fedjax.metrics.CrossEntropyLoss(), "accuracy": fedjax.metrics.Accuracy()},
    )
    algorithm = fed_avg.federated_averaging(
        fedjax.model_grad(model),
        fedjax.optimizers.sgd(s["lr"], s["momentum"] or None),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=s["batch"], num_epochs=s["epochs"]),
    )
    sampler = fedjax.client_samplers.UniformGetClientSampler(data, s["cohort"], seed=0)

    def tick(params: Any) -> None:
        batches = test.padded_batch(batch_size=common.TEST_BATCH)
        clock.tick(float(fedjax.evaluate_model(model, params, batches)["loss"]))

    state = algorithm.init(converted(task, model.init(jax.random.PRNGKey(0))))
    tick(state.params)
    for _ in range(s["rounds"]):
        state, _ = algorithm.apply(state, sampler.sample())
        tick(state.params)
    clock.write(report, version("fedjax"))


if __name__ == "__main__":
    main()
