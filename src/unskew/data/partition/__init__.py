"""Which client holds which samples; importing this package registers every split."""

from unskew.data.partition import lazy_splits, saved, splits

__all__ = ["lazy_splits", "saved", "splits"]
