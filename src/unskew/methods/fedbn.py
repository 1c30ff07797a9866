"""FedBN: normalisation layers stay with the client, with scale, shift and statistics; all else is averaged.

Li, Jiang, Zhang, Kamp, Dou, "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization", ICLR 2021.

    paper                            here
    gamma, beta of client k          c.state["personal"]: parameters of layers that are normalisation layers by type
    running means and variances      c.state["buffers"]
    all other parameters             c.message["model"], averaged

The product is a personal model for each client: shared weights with its own normalisation. The server's normalisation
was never trained, so there is no global figure; `local_test=common` gives the mean over clients on the common test set.
The paper averages with equal weights, we by samples, as in FedAvg. Official code finds the layers by name, we by type.
"""

from __future__ import annotations

import logging

from unskew.base.tree import Groups
from unskew.core.context import ServerContext
from unskew.core.method import Method, methods

log = logging.getLogger(__name__)


@methods.register("fedbn")
class FedBN(Method):
    """FedAvg but for normalisation layers, which never leave the client."""

    personal = ("@norm",)
    buffer_policy = "local"
    output = "personal"

    def init(self, s: ServerContext) -> Groups:
        """The initial model; says where nothing is personal."""
        if not s.names.match(self.personal):
            log.warning("fedbn: the network has no normalisation layer, so this is fedavg; cnn8(norm=batch) has some")
        return super().init(s)
