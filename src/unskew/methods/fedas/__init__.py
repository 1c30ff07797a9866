"""FedAS; the method itself is in method.py."""

from unskew.methods.fedas.method import FedAS

__all__ = ["FedAS"]
