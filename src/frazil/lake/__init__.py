"""The Python API. Its public names are those of `frazil`; docs/python.md describes them."""
