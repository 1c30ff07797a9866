"""FedAvg: clients train the received model on their own data, the server averages what they send back.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.

    paper          here
    w_t            c.message["model"]
    w_{t+1}^k      the parameters that `train` returns
    n_k            c.num_samples, the weight of client k
    E, B, eta      local.epochs, local.batch, local.lr

The server computes w + sum_k p_k (w_k - w), which is sum_k p_k w_k.
"""

from __future__ import annotations

from unskew.core.method import Method, methods


@methods.register("fedavg")
class FedAvg(Method):
    """Federated averaging: the mean of the clients' models, weighted by their samples."""
