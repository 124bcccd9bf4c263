"""Runs a command where there is no network but the loopback: python -m tests.offline COMMAND …

A network namespace of its own (Linux). Who is not root becomes so within a user namespace first.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import sys

_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000
_SET_FLAGS, _UP = 0x8914, 0x1


def main() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    wanted = _NEW_NETWORK | (_NEW_USER if os.geteuid() != 0 else 0)
    if libc.unshare(wanted) != 0:
        sys.exit(f"the network cannot be cut here: {os.strerror(ctypes.get_errno())}")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SET_FLAGS, struct.pack("16sh", b"lo", _UP))
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
