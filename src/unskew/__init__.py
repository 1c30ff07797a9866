"""unskew: federated learning when clients' data are skewed.

import unskew
result = unskew.run("fedprox(mu=0.1)", data="digits", split="dirichlet:0.1", clients=20, rounds=20)
print(result.accuracy)
"""

from unskew.api import compare, resume, run
from unskew.data import Dataset, Samples, load
from unskew.errors import ClientError, InputError
from unskew.models import Model, split_head

__version__ = "0.1.0"
__all__ = [
    "ClientError", "Dataset", "InputError", "Model", "Samples", "__version__", "compare", "load", "resume", "run",
    "split_head",
]  # fmt: skip
