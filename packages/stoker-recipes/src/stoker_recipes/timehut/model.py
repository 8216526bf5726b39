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

import numpy as np
import torch
from torch import Tensor

from stoker.errors import OptionError
from stoker_recipes.timehut.batches import Tables


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
                raise OptionError.expected(name, getattr(self, name), "an integer from 1")
        if not 0 <= self.depth <= 30:
            raise OptionError.expected("depth", self.depth, "an integer from 0 to 30")


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
        return [length for layer in self.layers for length in (layer.num_weights, layer.outputs)]

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
        layer = ConvLayer(name=name, inputs=inputs, outputs=outputs, taps=taps, kernel=kernel, dilation=dilation, begin=begin)
        layers.append(layer)
        begin += layer.num_weights + outputs
    return RowLayout(size=size, layers=tuple(layers))


def initial_weights(size: EncoderSize, seed: int) -> Tensor:
    """The whole row of a new member: uniform within 1/sqrt(inputs x taps), as torch initialises linear and convolution layers."""
    layout = make_layout(size)
    drawn = torch.rand(layout.num_values, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)
    bounds = [(layer.inputs * layer.kernel) ** -0.5 for layer in layout.layers for _ in range(2)]
    return (2 * drawn - 1) * torch.tensor(bounds).repeat_interleave(torch.tensor(layout.sizes))


def kept_positions(layout: RowLayout) -> Tensor:
    """Where the values of a row lie in the row of the whole encoder."""
    positions = []
    for layer, whole in zip(layout.layers, make_layout(layout.size).layers, strict=True):
        per_tap = layer.inputs * layer.outputs
        first = whole.begin + (per_tap if layer.taps < layer.kernel else 0)  # the middle one of three
        positions += [torch.arange(first, first + layer.num_weights), torch.arange(layer.outputs) + whole.begin + whole.num_weights]
    return torch.cat(positions)


def expand(rows: Tensor, layout: RowLayout, dropped: Tensor) -> Tensor:
    """The rows of whole encoders: `rows` (K, P) where the layout has a tap, and the rows `dropped` (K, all) elsewhere."""
    whole = dropped.to(rows).clone()
    whole[:, kept_positions(layout).to(rows.device)] = rows
    return whole


def to_tensors(row: Tensor, size: EncoderSize) -> dict[str, Tensor]:
    """The row of a whole encoder as named tensors, in the names and shapes of TS2Vec's checkpoints."""
    named = {}
    for layer, weight, bias in _split(row[None], make_layout(size)):
        shaped = weight.reshape(layer.kernel, layer.inputs, layer.outputs).permute(2, 1, 0).contiguous()
        named[f"{layer.name}.weight"] = shaped[..., 0].contiguous() if layer.name == "input_fc" else shaped
        named[f"{layer.name}.bias"] = bias.reshape(-1).contiguous()
    return named


def from_tensors(named: dict[str, Tensor], size: EncoderSize) -> Tensor:
    """The row of a whole encoder from named tensors; the names may begin with "module.", as those of an averaged model do."""
    tensors = {name.removeprefix("module."): value for name, value in named.items()}
    parts = []
    for layer in make_layout(size).layers:
        shape = (layer.outputs, layer.inputs, layer.kernel)[: 2 if layer.name == "input_fc" else 3]
        for name, expected in ((f"{layer.name}.weight", shape), (f"{layer.name}.bias", (layer.outputs,))):
            if name not in tensors or tuple(tensors[name].shape) != expected:
                has = tuple(tensors[name].shape) if name in tensors else "nothing"
                raise OptionError(
                    f"the weights have {has} for {name!r}; expected a tensor of shape {expected}. Check the sizes.",
                    parameter="weights",
                )
        weight = tensors[f"{layer.name}.weight"].reshape(layer.outputs, layer.inputs, layer.kernel)
        parts += [weight.permute(2, 1, 0).reshape(-1), tensors[f"{layer.name}.bias"]]
    return torch.cat(parts)


def sizes_of(named: dict[str, Tensor]) -> EncoderSize:
    """The sizes of the encoder that named tensors are of."""
    tensors = {name.removeprefix("module."): value for name, value in named.items()}
    depth = sum(name.endswith(".conv1.conv.weight") for name in tensors) - 1
    last = tensors.get(f"feature_extractor.net.{depth}.projector.weight")
    if "input_fc.weight" not in tensors or last is None:
        raise OptionError(
            "the tensors are not those of a TS2Vec encoder: input_fc or the projector of the last block is missing.",
            parameter="tensors",
        )
    hidden, channels = tensors["input_fc.weight"].shape
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
        (first_layer, first, first_bias), (second_layer, second, second_bias) = rest[position : position + 2]
        residual = h
        if len(block) == 3:
            _, weight, bias = rest[position + 2]
            residual = _linear(h.flatten(1, 2), weight, bias).view(*h.shape[:3], -1)
        y = _convolve(h, inside, first, first_bias, first_layer)
        h = _convolve(y, inside, second, second_bias, second_layer) + residual
        position += len(block)
    return h if is_selected or select is None else select(h)


def _split(rows: Tensor, layout: RowLayout) -> list[tuple[ConvLayer, Tensor, Tensor]]:
    """Each layer with its weights (K, taps x inputs, outputs) and bias (K, 1, outputs); `split` has one backward for all."""
    parts = torch.split(rows, layout.sizes, dim=1)
    return [
        (layer, weight.reshape(len(rows), -1, layer.outputs), bias.reshape(len(rows), 1, -1))
        for layer, weight, bias in zip(layout.layers, parts[::2], parts[1::2], strict=True)
    ]


def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    if x.shape[0] == 1:  # the CPU's kernel for one matrix is faster; squeezed, as the backward of an index writes zeros first
        return torch.addmm(bias.squeeze(0), x.squeeze(0), weight.squeeze(0)).unsqueeze(0)
    return torch.baddbmm(bias, x, weight)


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    return torch.mm(a.squeeze(0), b.squeeze(0)).unsqueeze(0) if a.shape[0] == 1 else torch.bmm(a, b)


def _convolve(h: Tensor, inside: Tensor | None, weight: Tensor, bias: Tensor, layer: ConvLayer) -> Tensor:
    """conv(gelu(h)), with h acting as 0 outside."""
    steps = h.shape[2]
    if layer.taps == 3 and layer.dilation < steps:
        return _Convolution.apply(h, inside, weight, bias, layer.dilation)  # type: ignore[no-any-return, no-untyped-call]
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


# ---- both views of a batch, for one member on a CPU: `encode` with its gradient by hand ----
# Rows are the steps that a view has, without padding between views: nothing is computed for steps outside of a crop, and there are no
# masks. A convolution of three taps gathers its rows with those `dilation` steps before and after, or a row of zeros beyond the ends of
# the view, and is one matmul; so is its gradient by the input, with the taps in reverse. From the first block on in which no step sees
# another, only the overlap of both views counts.


def gather_views(tables: Tables, update: int, layout: RowLayout) -> dict[str, Tensor]:
    """The batch of an update of one member: `encode_views` takes it.

    Returns:
        "input": the series at each row and a 1, or 0 where masked, (M, D + 1). "neighbours": for each dilation that matters the rows
        before, at and behind each row, (dilations, 3 M). "overlap": rows of the overlap, by series, view and step. The rest is as
        `gather_batch` has it.
    """
    rows, start = tables.rows[update, 0], tables.start[update, 0]
    eleft, left, right, eright = tables.bounds[update, 0].tolist()
    parts, steps, ends, batch, width = [], [], [], len(rows), right - left
    for view, (low, high) in enumerate(((eleft, right), (left, eright))):
        place = start[:, None] + torch.arange(low, high)
        keep = tables.mask[update, 0, :, view, low:high]
        if tables.given is not None:
            keep = keep & tables.given[rows[:, None], place]
        series = tables.data[rows[:, None], place]
        parts.append((torch.cat([series, torch.ones_like(series[..., :1])], -1) * keep[..., None]).flatten(0, 1))
        steps += [np.tile(np.arange(high - low), batch)]
        ends += [np.full(batch * (high - low), high - low)]
    x, step, end = torch.cat(parts), np.concatenate(steps), np.concatenate(ends)
    longest = max(right - eleft, eright - left)
    dilations = sorted({layer.dilation for layer in layout.layers if layer.taps == 3 and layer.dilation < longest})
    shift = np.array(dilations, np.int64).reshape(-1, 1, 1) * np.array([-1, 0, 1])
    is_inside = (step[:, None] + shift >= 0) & (step[:, None] + shift < end[:, None])
    neighbours = np.where(is_inside, np.arange(len(x))[:, None] + shift, len(x)).reshape(len(dilations), 3 * len(x))
    begins = np.array([[left - eleft], [batch * (right - eleft)]])
    first = np.arange(batch)[:, None, None] * np.array([[right - eleft], [eright - left]]) + begins
    views = {
        "input": x,
        "neighbours": torch.from_numpy(neighbours),
        "overlap": torch.from_numpy((first + np.arange(width)).reshape(-1)),
        "length": torch.tensor([width]),
        "steps": torch.arange(width),
        "tau": tables.tau[update],
        "key": tables.keys,
        "update": torch.tensor([update]),
    }
    if tables.target is not None:
        views["target"] = tables.target[update]
    return views


def encode_views(weights: Tensor, layout: RowLayout, batch: dict[str, Tensor]) -> Tensor:
    """Representations of the overlap, (1, views, width of the overlap, width of the encoder)."""
    z: Tensor = _Views.apply(weights, layout, batch["input"], batch["neighbours"], batch["overlap"])  # type: ignore[no-untyped-call]
    return z.view(1, -1, len(batch["steps"]), layout.size.width)


class _Views(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Tensor, layout: RowLayout, x: Tensor, neighbours: Tensor, overlap: Tensor) -> Tensor:
        row = weights.detach()[0]
        h = x @ _both(row, layout.layers[0])
        ctx.layout, ctx.x, ctx.row, ctx.overlap, ctx.kept = layout, x, row, overlap, []
        is_cut = False
        for i, block in enumerate(layout.blocks):
            near = neighbours[i] if i < len(neighbours) else None
            cut_from = None
            if near is None and not is_cut:
                cut_from, is_cut = len(h), True
                h = h[overlap]
            columns = _columns(h, near)
            y = _layer(columns, row, block[0])
            more = _columns(y, near)
            ctx.kept.append((cut_from, near, h, columns, y, more))
            out = _layer(more, row, block[1])
            h = out.add_(h) if len(block) == 2 else out.add_(h @ _weight(row, block[2])).add_(_bias(row, block[2]))
        ctx.is_cut = is_cut
        ctx.rows = len(h)
        return h if is_cut else h[overlap]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        row, layout, (g,) = ctx.row, ctx.layout, gradients
        of_row = torch.empty_like(row)
        if not ctx.is_cut:
            g = _scattered(g, ctx.overlap, ctx.rows)
        for block, (cut_from, near, h, columns, y, more) in reversed(list(zip(layout.blocks, ctx.kept, strict=True))):
            of_h = g
            if len(block) == 3:
                torch.mm(h.t(), g, out=_weight(of_row, block[2]))
                torch.sum(g, 0, out=_bias(of_row, block[2]))
                of_h = g @ _weight(row, block[2]).t()
            of_y = torch.ops.aten.gelu_backward(_pull(g, row, of_row, block[1], more, near), y)
            g = torch.ops.aten.gelu_backward(_pull(of_y, row, of_row, block[0], columns, near), h).add_(of_h)
            if cut_from is not None:
                g = _scattered(g, ctx.overlap, cut_from)
        torch.mm(ctx.x.t(), g, out=_both(of_row, layout.layers[0]))
        return of_row[None], None, None, None, None


def _weight(row: Tensor, layer: ConvLayer, *, middle: bool = False) -> Tensor:
    """The weights of a layer, (taps x inputs, outputs), or those of the middle tap."""
    whole = row[layer.begin : layer.begin + layer.num_weights].view(-1, layer.outputs)
    return whole[layer.inputs : 2 * layer.inputs] if middle and layer.taps == 3 else whole


def _bias(row: Tensor, layer: ConvLayer) -> Tensor:
    begin = layer.begin + layer.num_weights
    return row[begin : begin + layer.outputs]


def _both(row: Tensor, layer: ConvLayer) -> Tensor:
    """Weights and bias of the first layer, (channels + 1, outputs)."""
    return row[layer.begin : layer.begin + layer.num_weights + layer.outputs].view(-1, layer.outputs)


def _columns(h: Tensor, near: Tensor | None) -> Tensor:
    """gelu(h), or where steps see each other that of each row and its neighbours, (M, 3 x channels)."""
    if near is None:
        return torch.nn.functional.gelu(h)
    padded = h.new_empty(len(h) + 1, h.shape[1])
    torch.ops.aten.gelu.out(h, approximate="none", out=padded[:-1])
    padded[-1].zero_()
    return padded.index_select(0, near).view(len(h), -1)


def _layer(columns: Tensor, row: Tensor, layer: ConvLayer) -> Tensor:
    return torch.addmm(_bias(row, layer), columns, _weight(row, layer, middle=columns.shape[1] == layer.inputs))


def _pull(g: Tensor, row: Tensor, of_weights: Tensor, layer: ConvLayer, columns: Tensor, near: Tensor | None) -> Tensor:
    """The gradient of gelu(h), given that of the layer's result; those of its weights go into `found`."""
    torch.sum(g, 0, out=_bias(of_weights, layer))
    if near is None:
        if layer.taps == 3:
            _weight(of_weights, layer).zero_()
        torch.mm(columns.t(), g, out=_weight(of_weights, layer, middle=True))
        return g @ _weight(row, layer, middle=True).t()
    torch.mm(columns.t(), g, out=_weight(of_weights, layer))
    padded = torch.cat([g, g.new_zeros(1, g.shape[1])])
    reverse = _weight(row, layer).view(3, layer.inputs, layer.outputs).flip(0).transpose(1, 2).reshape(-1, layer.inputs)
    return padded.index_select(0, near).view(len(g), -1) @ reverse


def _scattered(g: Tensor, overlap: Tensor, rows: int) -> Tensor:
    return g.new_zeros(rows, g.shape[1]).index_copy_(0, overlap, g)
