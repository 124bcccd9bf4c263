"""What is said of a file that is not what it should be."""

from __future__ import annotations


class Damaged(Exception):  # noqa: N818 - the status of a file, told as "Damaged: the file ends …"
    """The file is cut off, or breaks the rules of its format."""
