"""EfficientNet-Lite0 as an ONNX graph: its weights with the batch norms folded into the convolutions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from frazil.extract.vision.checkpoint import Array

#: Changes with the graph, so that cached files of older ones are not used.
GRAPH: Final = "1"
SIDE: Final = 224
INPUT: Final = "pixels"
OUTPUT: Final = "probabilities"

#: Strides of the depthwise convolutions, block by block. The shapes of the weights define everything else.
_STRIDES: Final = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1)
_EPSILON: Final = 1e-3
# Old enough for every current onnxruntime.
_OPSET: Final = 17
_IR: Final = 8


def build_graph(weights: Mapping[str, Array]) -> bytes:
    """Builds the network as an ONNX file: one picture (1, 3, 224, 224) of (value - 127) / 128 → 1,000 probabilities.

    Raises:
        KeyError: a weight is missing.
    """
    from onnx import TensorProto, checker, helper

    built = _Nodes(weights)
    last = built.convolution(INPUT, "_conv_stem", "_bn0", stride=2)
    for number, stride in enumerate(_STRIDES):
        last = built.block(last, f"_blocks.{number}", stride)
    last = built.convolution(last, "_conv_head", "_bn1")
    built.classified(last)
    made = helper.make_graph(
        built.nodes,
        "efficientnet-lite0",
        [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, [1, 3, SIDE, SIDE])],
        [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, [1, 1000])],
        built.constants,
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR)
    checker.check_model(model)
    return bytes(model.SerializeToString())


def fold_batch_norm(weights: Mapping[str, Array], convolution: str, norm: str) -> tuple[Array, Array]:
    """Folds a batch norm into the convolution before it. Returns weight and bias."""
    scale = weights[f"{norm}.weight"] / np.sqrt(weights[f"{norm}.running_var"] + _EPSILON)
    weight = weights[f"{convolution}.weight"] * scale[:, None, None, None]
    bias = weights[f"{norm}.bias"] - weights[f"{norm}.running_mean"] * scale
    return weight.astype(np.float32), bias.astype(np.float32)


class _Nodes:
    """A graph under construction: nodes in order, and their constants."""

    def __init__(self, weights: Mapping[str, Array]) -> None:
        self.weights = weights
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._low = self._constant("low", np.float32(0))
        self._high = self._constant("high", np.float32(6))

    def block(self, last: str, name: str, stride: int) -> str:
        """Adds an inverted residual block: expand, depthwise convolution, project; plus the input if shapes match."""
        widens = f"{name}._expand_conv.weight" in self.weights
        inner = self.convolution(last, f"{name}._expand_conv", f"{name}._bn0") if widens else last
        inner = self.convolution(inner, f"{name}._depthwise_conv", f"{name}._bn1", stride=stride)
        inner = self.convolution(inner, f"{name}._project_conv", f"{name}._bn2", clipped=False)
        leaves, within = self.weights[f"{name}._project_conv.weight"].shape[:2]
        enters = self.weights[f"{name}._expand_conv.weight"].shape[1] if widens else within
        return self._node("Add", [inner, last], f"{name}.sum") if stride == 1 and enters == leaves else inner

    def convolution(self, last: str, name: str, norm: str, stride: int = 1, *, clipped: bool = True) -> str:
        weight, bias = fold_batch_norm(self.weights, name, norm)
        side = weight.shape[-1]
        # Depthwise weights have one input channel: each channel is a group of its own.
        group = weight.shape[0] if weight.shape[1] == 1 else 1
        last = self._node(
            "Conv",
            [last, self._constant(f"{name}.weight", weight), self._constant(f"{name}.bias", bias)],
            name,
            kernel_shape=[side, side],
            strides=[stride, stride],
            group=group,
            auto_pad="SAME_UPPER",
        )
        return self._node("Clip", [last, self._low, self._high], f"{name}.relu6") if clipped else last

    def classified(self, last: str) -> None:
        last = self._node("GlobalAveragePool", [last], "pooled")
        last = self._node("Flatten", [last], "flat")
        weight, bias = (self._constant(f"_fc.{part}", self.weights[f"_fc.{part}"]) for part in ("weight", "bias"))
        last = self._node("Gemm", [last, weight, bias], "scores", transB=1)
        self._node("Softmax", [last], OUTPUT, axis=1)

    def _node(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        from onnx import helper

        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def _constant(self, name: str, value: Any) -> str:
        from onnx import numpy_helper

        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name
