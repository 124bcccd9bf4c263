"""Reads the weights of a PyTorch checkpoint without PyTorch.

The file is of PyTorch's older format: pickles one after the other (a magic number, a version, facts of the machine, the
tensors, the names of the storages), then the numbers of each storage. A pickle can run any code; this reader knows
four names, and refuses every other.
"""

from __future__ import annotations

import pickle
import struct
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_MAGIC: Final = 0x1950A86A20F9469CFC6C
_PROTOCOL: Final = 1001
_TYPES: Final[dict[str, np.dtype[Any]]] = {"FloatStorage": np.dtype("<f4"), "LongStorage": np.dtype("<i8")}


class BadCheckpointError(ValueError):
    """The file is not a checkpoint of the supported format."""


@dataclass(frozen=True)
class _Tensor:
    """The location of a tensor in a storage; its numbers follow later in the file."""

    storage: str
    kind: np.dtype[Any]
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def read_weights(file: Path) -> dict[str, Array]:
    """Reads the tensors of a checkpoint by name.

    Raises:
        BadCheckpointError: it is damaged, of another format, or would run code.
    """
    with file.open("rb") as stream:
        try:
            if _load(stream) != _MAGIC or _load(stream) != _PROTOCOL:
                raise BadCheckpointError(f"{file.name} is not a checkpoint of PyTorch's older format")
            _load(stream)  # sizes of types on the machine that wrote it
            tensors: dict[str, _Tensor] = _load(stream)
            kinds = {t.storage: t.kind for t in tensors.values()}
            storages = {key: _numbers(stream, kinds[key]) for key in _load(stream)}
            return {name: _placed(storages[t.storage], t) for name, t in tensors.items()}
        except (
            pickle.UnpicklingError,
            EOFError,
            KeyError,
            AttributeError,
            TypeError,
            ValueError,
            struct.error,
        ) as error:
            if isinstance(error, BadCheckpointError):
                raise
            raise BadCheckpointError(f"{file.name} is damaged: {type(error).__name__}: {error}") from error


def _load(stream: BinaryIO) -> Any:
    return _Reader(stream).load()


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Callable[..., Any] | str:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _tensor
        if module == "torch" and name in _TYPES:
            return name
        raise BadCheckpointError(f"the checkpoint refers to {module}.{name}, which is not needed for weights")

    def persistent_load(self, pid: Any) -> tuple[str, np.dtype[Any]]:
        _, kind, key, *_ = pid
        return str(key), _TYPES[kind]


def _tensor(storage: tuple[str, np.dtype[Any]], offset: int, shape: Any, strides: Any, *_: Any) -> _Tensor:
    return _Tensor(storage[0], storage[1], int(offset), tuple(shape), tuple(strides))


def _numbers(stream: BinaryIO, kind: np.dtype[Any]) -> Array:
    (count,) = struct.unpack("<q", stream.read(8))
    data = stream.read(count * kind.itemsize) if count >= 0 else b""
    if len(data) != count * kind.itemsize:
        raise BadCheckpointError("the checkpoint is truncated")
    return np.frombuffer(data, kind)


def _placed(numbers: Array, tensor: _Tensor) -> Array:
    last = tensor.offset + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.strides, strict=True))
    if min((tensor.offset, *tensor.strides), default=0) < 0 or min(tensor.shape, default=1) < 1 or last >= len(numbers):
        raise BadCheckpointError("a tensor of the checkpoint exceeds its storage")
    strides = tuple(s * tensor.kind.itemsize for s in tensor.strides)
    return np.ascontiguousarray(np.lib.stride_tricks.as_strided(numbers[tensor.offset :], tensor.shape, strides))
