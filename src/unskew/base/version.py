"""The package's version, where every room can read it."""

__version__ = "0.1.0"
MAKER = "made by unskew"
"""Files that commands write say so, and only such files may be replaced by newer ones."""
