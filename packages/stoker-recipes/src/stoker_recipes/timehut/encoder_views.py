"""The encoder on both views of a batch, for one member on a CPU: `encode` with its gradient by hand.

Rows are the steps that a view has, without padding between views: nothing is computed for steps outside of a crop, and there are no masks.
A convolution of three taps gathers its rows with those `dilation` steps before and behind, or a row of zeros beyond the ends of the view,
and is one matmul; so is its gradient by the input, with the taps in reverse. From the first block on in which no step sees another, only
the overlap of both views counts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from stoker_recipes.timehut.batches import Tables
from stoker_recipes.timehut.model import ConvLayer, RowLayout


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
    dilations = sorted({one.dilation for one in layout.layers if one.taps == 3 and one.dilation < longest})
    shift = np.array(dilations, np.int64).reshape(-1, 1, 1) * np.array([-1, 0, 1])
    is_inside = (step[:, None] + shift >= 0) & (step[:, None] + shift < end[:, None])
    neighbours = np.where(is_inside, np.arange(len(x))[:, None] + shift, len(x)).reshape(len(dilations), 3 * len(x))
    first = np.arange(batch)[:, None, None] * np.array([[right - eleft], [eright - left]]) + np.array(
        [[left - eleft], [batch * (right - eleft)]]
    )
    found = {
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
        found["target"] = tables.target[update]
    return found


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
            y = _matmul(columns, row, block[0])
            more = _columns(y, near)
            ctx.kept.append((cut_from, near, h, columns, y, more))
            out = _matmul(more, row, block[1])
            h = out.add_(h) if len(block) == 2 else out.add_(h @ _weight(row, block[2])).add_(_bias(row, block[2]))
        ctx.is_cut = is_cut
        ctx.rows = len(h)
        return h if is_cut else h[overlap]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        row, layout, (g,) = ctx.row, ctx.layout, gradients
        found = torch.empty_like(row)
        if not ctx.is_cut:
            g = _scattered(g, ctx.overlap, ctx.rows)
        for block, (cut_from, near, h, columns, y, more) in reversed(list(zip(layout.blocks, ctx.kept, strict=True))):
            of_h = g
            if len(block) == 3:
                torch.mm(h.t(), g, out=_weight(found, block[2]))
                torch.sum(g, 0, out=_bias(found, block[2]))
                of_h = g @ _weight(row, block[2]).t()
            of_y = torch.ops.aten.gelu_backward(_pull(g, row, found, block[1], more, near), y)
            g = torch.ops.aten.gelu_backward(_pull(of_y, row, found, block[0], columns, near), h).add_(of_h)
            if cut_from is not None:
                g = _scattered(g, ctx.overlap, cut_from)
        torch.mm(ctx.x.t(), g, out=_both(found, layout.layers[0]))
        return found[None], None, None, None, None


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


def _matmul(columns: Tensor, row: Tensor, layer: ConvLayer) -> Tensor:
    return torch.addmm(_bias(row, layer), columns, _weight(row, layer, middle=columns.shape[1] == layer.inputs))


def _pull(g: Tensor, row: Tensor, found: Tensor, layer: ConvLayer, columns: Tensor, near: Tensor | None) -> Tensor:
    """The gradient of gelu(h), given that of the layer's result; those of its weights go into `found`."""
    torch.sum(g, 0, out=_bias(found, layer))
    if near is None:
        if layer.taps == 3:
            _weight(found, layer).zero_()
        torch.mm(columns.t(), g, out=_weight(found, layer, middle=True))
        return g @ _weight(row, layer, middle=True).t()
    torch.mm(columns.t(), g, out=_weight(found, layer))
    padded = torch.cat([g, g.new_zeros(1, g.shape[1])])
    reverse = _weight(row, layer).view(3, layer.inputs, layer.outputs).flip(0).transpose(1, 2).reshape(-1, layer.inputs)
    return padded.index_select(0, near).view(len(g), -1) @ reverse


def _scattered(g: Tensor, overlap: Tensor, rows: int) -> Tensor:
    return g.new_zeros(rows, g.shape[1]).index_copy_(0, overlap, g)
