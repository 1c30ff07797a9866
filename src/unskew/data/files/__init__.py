"""The files of data sets: find, download, decode and cache them."""
