"""Arrow Flight with the environment that Frazil needs."""

from __future__ import annotations

import os

import pyarrow as pa

# gRPC's new event engine hands every message from thread to thread: a round trip took 130 µs with it, 60 µs without.
# gRPC reads the variable at its first use. Only with a version that is known to know these names: others complain.
if pa.__version__.startswith("26."):
    os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")

from pyarrow import flight

__all__ = ["flight"]
