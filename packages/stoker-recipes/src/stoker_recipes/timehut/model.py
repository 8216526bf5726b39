"""The encoder: a stack of dilated convolutions over time, as matmuls over a leading axis of members.

    x (B, T, D), NaN positions 0
    h = Linear(D, hidden)(x), set to 0 where a position is masked or NaN
    blocks i = 0..depth:  h = conv2(gelu(conv1(gelu(h)))) + r(h)     kernel 3, dilation 2^i; r is a 1x1 convolution in the last block

All weights of a member are one row of a matrix (K, P): K members are trained by the same code as one. A layer's weights lie there as
(taps, inputs, outputs), then its bias.

A tap with dilation d >= T sees nothing but zero padding in series of at most T steps: its gradient is exactly 0. `make_layout` leaves
such taps out; `expand` puts them back for a file or for longer series.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from stoker.errors import OptionError


@dataclass(frozen=True, kw_only=True)
class EncoderSize:
    """Sizes of an encoder."""

    channels: int
    hidden: int = 64
    depth: int = 10
    width: int = 320
    """Values of a representation."""

    def __post_init__(self) -> None:
        for name in ("channels", "hidden", "width"):
            if getattr(self, name) < 1:
                raise OptionError(f"{name} is {getattr(self, name)}; expected an integer from 1.")
        if not 0 <= self.depth <= 30:
            raise OptionError(f"depth is {self.depth}; expected an integer from 0 to 30.")


@dataclass(frozen=True, kw_only=True)
class ConvLayer:
    """One linear map: its name in a file, its sizes, and where its weights begin in the row of a member."""

    name: str
    inputs: int
    outputs: int
    taps: int
    kernel: int
    """Taps of the whole layer; `taps` of them are in the row: all, or the middle one."""
    dilation: int
    begin: int

    @property
    def num_weights(self) -> int:
        """Weights in the row, without the bias."""
        return self.taps * self.inputs * self.outputs


@dataclass(frozen=True, kw_only=True)
class RowLayout:
    """Where the weights of a member lie in its row."""

    size: EncoderSize
    layers: tuple[ConvLayer, ...]

    @cached_property
    def sizes(self) -> list[int]:
        """Lengths of weights and biases in turn."""
        return [length for one in self.layers for length in (one.num_weights, one.outputs)]

    @property
    def num_values(self) -> int:
        """Values of a row."""
        return sum(self.sizes)

    @cached_property
    def blocks(self) -> list[list[ConvLayer]]:
        """The layers of each block: two convolutions, and the 1x1 of the last block."""
        layers = self.layers[1:]
        return [list(layers[i : i + 2]) for i in range(0, len(layers) - 3, 2)] + [list(layers[-3:])]


def make_layout(size: EncoderSize, length: int | None = None) -> RowLayout:
    """The layout of an encoder; with `length`, without the taps that no series of at most this many steps can use."""
    plan: list[tuple[str, int, int, int, int]] = [("input_fc", size.channels, size.hidden, 1, 1)]
    for i in range(size.depth + 1):
        outputs = size.width if i == size.depth else size.hidden
        block = f"feature_extractor.net.{i}"
        plan += [(f"{block}.conv1.conv", size.hidden, outputs, 3, 2**i), (f"{block}.conv2.conv", outputs, outputs, 3, 2**i)]
    plan.append((f"feature_extractor.net.{size.depth}.projector", size.hidden, size.width, 1, 1))
    layers, begin = [], 0
    for name, inputs, outputs, kernel, dilation in plan:
        taps = 1 if length is not None and dilation >= length else kernel
        one = ConvLayer(name=name, inputs=inputs, outputs=outputs, taps=taps, kernel=kernel, dilation=dilation, begin=begin)
        layers.append(one)
        begin += one.num_weights + outputs
    return RowLayout(size=size, layers=tuple(layers))


def initial_weights(size: EncoderSize, seed: int) -> Tensor:
    """The whole row of a new member: uniform within 1/sqrt(inputs x taps), as torch initialises linear and convolution layers."""
    layout = make_layout(size)
    drawn = torch.rand(layout.num_values, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)
    bounds = [(one.inputs * one.kernel) ** -0.5 for one in layout.layers for _ in range(2)]
    return (2 * drawn - 1) * torch.tensor(bounds).repeat_interleave(torch.tensor(layout.sizes))


def kept_positions(layout: RowLayout) -> Tensor:
    """Where the values of a row lie in the row of the whole encoder."""
    found = []
    for one, whole in zip(layout.layers, make_layout(layout.size).layers, strict=True):
        per_tap = one.inputs * one.outputs
        first = whole.begin + (per_tap if one.taps < one.kernel else 0)  # the middle one of three
        found += [torch.arange(first, first + one.num_weights), torch.arange(one.outputs) + whole.begin + whole.num_weights]
    return torch.cat(found)


def expand(rows: Tensor, layout: RowLayout, dropped: Tensor) -> Tensor:
    """The rows of whole encoders: `rows` (K, P) where the layout has a tap, and the rows `dropped` (K, all) elsewhere."""
    whole = dropped.to(rows).clone()
    whole[:, kept_positions(layout).to(rows.device)] = rows
    return whole


def to_tensors(row: Tensor, size: EncoderSize) -> dict[str, Tensor]:
    """The row of a whole encoder as named tensors, in the names and shapes of TS2Vec's checkpoints."""
    named = {}
    for one, weight, bias in _split(row[None], make_layout(size)):
        shaped = weight.reshape(one.kernel, one.inputs, one.outputs).permute(2, 1, 0).contiguous()
        named[f"{one.name}.weight"] = shaped[..., 0].contiguous() if one.name == "input_fc" else shaped
        named[f"{one.name}.bias"] = bias.reshape(-1).contiguous()
    return named


def from_tensors(named: dict[str, Tensor], size: EncoderSize) -> Tensor:
    """The row of a whole encoder from named tensors; the names may begin with "module.", as those of an averaged model do."""
    found = {name.removeprefix("module."): value for name, value in named.items()}
    parts = []
    for one in make_layout(size).layers:
        shape = (one.outputs, one.inputs, one.kernel)[: 2 if one.name == "input_fc" else 3]
        for name, expected in ((f"{one.name}.weight", shape), (f"{one.name}.bias", (one.outputs,))):
            if name not in found or tuple(found[name].shape) != expected:
                has = tuple(found[name].shape) if name in found else "nothing"
                raise OptionError(f"the weights have {has} for {name!r}; expected a tensor of shape {expected}. Check the sizes.")
        weight = found[f"{one.name}.weight"].reshape(one.outputs, one.inputs, one.kernel)
        parts += [weight.permute(2, 1, 0).reshape(-1), found[f"{one.name}.bias"]]
    return torch.cat(parts)


def sizes_of(named: dict[str, Tensor]) -> EncoderSize:
    """The sizes of the encoder that named tensors are of."""
    found = {name.removeprefix("module."): value for name, value in named.items()}
    depth = sum(name.endswith(".conv1.conv.weight") for name in found) - 1
    last = found.get(f"feature_extractor.net.{depth}.projector.weight")
    if "input_fc.weight" not in found or last is None:
        raise OptionError("the tensors are not those of a TS2Vec encoder: input_fc or the projector of the last block is missing.")
    hidden, channels = found["input_fc.weight"].shape
    return EncoderSize(channels=channels, hidden=hidden, depth=depth, width=last.shape[0])


def encode(
    rows: Tensor,
    layout: RowLayout,
    x: Tensor,
    keep: Tensor | None = None,
    *,
    crop: Tensor | None = None,
    select: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Representations of every step: (K, N, T, width).

    Args:
        rows: The weights of K members, (K, P).
        layout: Where they lie.
        x: Series (G, M, T, D), G being 1 or K.
        keep: Which positions are given, (G, N, T): N is a multiple V of M, and position (g, m * V + v) masks view v of series m.
        crop: Which positions a view has, (G, N, T); others act as the zero padding of a shorter series.
        select: Applied before the first block that mixes no steps: (K, N, T, hidden) -> (K, N, T', hidden).
    """
    layers = _split(rows, layout)
    (_, weight, bias), *rest = layers
    num_members, (groups, _, steps, channels) = len(rows), x.shape
    h = _linear(x.expand(num_members, *x.shape[1:]).reshape(num_members, -1, channels), weight, bias)
    h = h.view(num_members, -1, steps, layout.size.hidden)
    if keep is not None:
        views = keep.shape[1] // x.shape[1]
        h = h.repeat_interleave(views, 1) if views > 1 else h
        h = h * keep[..., None].to(h.dtype)
    inside = None if crop is None else crop[..., None].to(h.dtype).expand(groups, *h.shape[1:3], 1)
    position, is_selected = 0, select is None
    for block in layout.blocks:
        if not is_selected and block[0].taps == 1:  # the rest works step by step: on the steps that count
            assert select is not None
            h, is_selected = select(h), True
        (one, first, first_bias), (two, second, second_bias) = rest[position : position + 2]
        residual = h
        if len(block) == 3:
            _, weight, bias = rest[position + 2]
            residual = _linear(h.flatten(1, 2), weight, bias).view(*h.shape[:3], -1)
        y = _convolve(h, inside, first, first_bias, one)
        h = _convolve(y, inside, second, second_bias, two) + residual
        position += len(block)
    return h if is_selected or select is None else select(h)


def _split(rows: Tensor, layout: RowLayout) -> list[tuple[ConvLayer, Tensor, Tensor]]:
    """Each layer with its weights (K, taps x inputs, outputs) and bias (K, 1, outputs); `split` has one backward for all."""
    parts = torch.split(rows, layout.sizes, dim=1)
    return [
        (one, weight.reshape(len(rows), -1, one.outputs), bias.reshape(len(rows), 1, -1))
        for one, weight, bias in zip(layout.layers, parts[::2], parts[1::2], strict=True)
    ]


def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    if (
        x.shape[0] == 1
    ):  # the CPU's kernel for one matrix is the faster one; squeeze, as the backward of an index writes zeros first
        return torch.addmm(bias.squeeze(0), x.squeeze(0), weight.squeeze(0)).unsqueeze(0)
    return torch.baddbmm(bias, x, weight)


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    return torch.mm(a.squeeze(0), b.squeeze(0)).unsqueeze(0) if a.shape[0] == 1 else torch.bmm(a, b)


def _convolve(h: Tensor, inside: Tensor | None, weight: Tensor, bias: Tensor, layer: ConvLayer) -> Tensor:
    """conv(gelu(h)), with h acting as 0 outside."""
    steps = h.shape[2]
    if layer.taps == 3 and layer.dilation < steps:
        found: Tensor = _Convolution.apply(h, inside, weight, bias, layer.dilation)  # type: ignore[no-untyped-call]
        return found
    if layer.taps == 3:  # in a window of so few steps the outer taps see padding alone
        weight = weight[:, layer.inputs : 2 * layer.inputs]
    y = _linear(torch.nn.functional.gelu(h).flatten(1, 2), weight, bias)
    return y.view(*h.shape[:3], -1)


class _Convolution(torch.autograd.Function):
    """A convolution of three taps over gelu(h) * inside, as one matmul.

    Autograd would write zeros and a copy for each of the three shifted slices; here each gradient is one matmul or one sum.
    """

    @staticmethod
    def forward(ctx: Any, h: Tensor, inside: Tensor | None, weight: Tensor, bias: Tensor, dilation: int) -> Tensor:
        a = torch.nn.functional.gelu(h)
        if inside is not None:
            a = a * inside
        steps = a.shape[2]
        padded = torch.nn.functional.pad(a, (0, 0, dilation, dilation))
        columns = torch.cat([padded[:, :, begin : begin + steps] for begin in (0, dilation, 2 * dilation)], -1).flatten(1, 2)
        ctx.save_for_backward(h, inside, weight, columns)
        ctx.dilation = dilation
        return _linear(columns, weight, bias).view(*h.shape[:3], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        h, inside, weight, columns = ctx.saved_tensors
        gradient, d, steps, inputs = gradients[0].flatten(1, 2), ctx.dilation, h.shape[2], h.shape[3]
        of_columns = _matmul(gradient, weight.transpose(1, 2)).view(*h.shape[:3], 3, inputs)
        of_a = of_columns[..., 1, :].contiguous()
        of_a[:, :, : steps - d] += of_columns[:, :, d:, 0]
        of_a[:, :, d:] += of_columns[:, :, : steps - d, 2]
        if inside is not None:
            of_a *= inside
        of_h = torch.ops.aten.gelu_backward(of_a, h)
        return of_h, None, _matmul(columns.transpose(1, 2), gradient), gradient.sum(1, keepdim=True), None


def pool_over_time(z: Tensor) -> Tensor:
    """One representation per series: the largest value of each dimension over time."""
    return z.amax(2)
