"""FedSOL; the method itself is in method.py."""

from unskew.methods.fedsol.method import FedSOL

__all__ = ["FedSOL"]
