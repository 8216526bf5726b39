"""One update on a GPU: from the tables of crops to the losses and the gradient of all weights, by Triton kernels.

At the size of these encoders a GPU spends its time on starting kernels and on intermediate results: an update in torch's operations has
about 700 kernels, here it has 68. The kernels are in `kernels`. Float32 is multiplied as torch's setting for
float32 matmuls says: in TF32, or in full. Imported only on a GPU.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import triton
from torch import Tensor

from stoker_recipes.timehut import kernels
from stoker_recipes.timehut.batches import Tables
from stoker_recipes.timehut.losses import LossTerms
from stoker_recipes.timehut.model import ConvLayer, RowLayout

MOST_ROWS = 64
"""Views of a batch that one program of the instance loss holds."""
MOST_WIDTH = 512
MANY = 1 << 13
"""Positions of all members from which on tiles are large: below, more programs are worth more than larger ones."""
LONG = 64
"""Steps from which on a view is more than a tile."""
TILE: dict[str, Any] = {"M": 64, "num_warps": 4, "num_stages": 3}
"""Of a convolution of many positions."""
WEIGHT_TILE: dict[str, Any] = {"M": 64, "num_warps": 4, "num_stages": 3}
TEMPORAL_TILE: dict[str, Any] = {"ROWS": 64, "COLUMNS": 32, "CHUNK": 64, "num_warps": 8, "num_stages": 2}


def are_able(layout: RowLayout, tables: Tables) -> bool:
    """Whether these sizes fit the kernels."""
    views = 2 * tables.rows.shape[2]
    return 4 <= views <= MOST_ROWS and max(layout.size.width, layout.size.hidden) <= MOST_WIDTH


def losses(weights: Tensor, update: Tensor, layout: RowLayout, tables: Tables, terms: LossTerms, *, dropout: float) -> Tensor:
    """The loss of each member in an update, (K,), as `EncoderPopulation.losses_of` gives it.

    Args:
        weights: (K, P).
        update: (1,): the number of the update, from which the kernels take its crops.
        layout: Where the weights lie.
        tables: Series and crops.
        terms: The terms of the loss.
        dropout: Share of values that are set to 0.
    """
    return _Losses.apply(weights, update, layout, tables, terms, dropout)  # type: ignore[no-any-return, no-untyped-call]


def compile_kernels(
    weights: Tensor, update: Tensor, layout: RowLayout, tables: Tables, terms: LossTerms, *, dropout: float
) -> None:
    """Compile what `losses` and its gradient need, several kernels at a time; Triton keeps them on disk."""
    step = _Step(weights.detach(), update, layout, tables, terms, dropout)
    step.is_dry = True
    with ThreadPoolExecutor(os.cpu_count()) as pool, triton.AsyncCompileMode(pool):
        step.forward()
        step.backward(weights.new_ones(len(weights)))


class _Losses(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, weights: Tensor, update: Tensor, layout: RowLayout, tables: Tables, terms: LossTerms, rate: float
    ) -> Tensor:
        ctx.step = _Step(weights.detach(), update, layout, tables, terms, rate)
        return ctx.step.forward()  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.step.backward(gradients[0].contiguous()), None, None, None, None, None


class _Step:
    """One update: its sizes, and the activations that its gradient needs."""

    def __init__(self, weights: Tensor, update: Tensor, layout: RowLayout, tables: Tables, terms: LossTerms, rate: float) -> None:
        self.weights, self.update, self.layout, self.tables, self.terms = weights, update, layout, tables, terms
        self.members, self.row_size = weights.shape
        self.groups, self.batch = tables.rows.shape[1:]
        self.length, self.views = tables.length, 2 * self.batch
        self.positions = self.views * self.length
        self.levels = self.length.bit_length()
        self.size = sum(self.length >> level for level in range(self.levels))
        self.precision = "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"
        self.is_large = self.members * self.positions >= MANY
        self.dropout = {
            "THRESHOLD": int(rate * 2**31),
            "SCALE": 1 / (1 - rate),
            "WIDTH": triton.next_power_of_2(layout.size.width),
        }
        self.is_dry = False

    def launch(self, kernel: Any, grid: tuple[int, ...], *values: Any, **options: Any) -> None:
        kernel.warmup(*values, grid=grid, **options) if self.is_dry else kernel[grid](*values, **options)

    def new(self, *shape: int) -> Tensor:
        return self.weights.new_empty(shape)

    def forward(self) -> Tensor:
        """The losses. Of each layer, x is its output and `active` the gelu of it, which the next layer takes."""
        last, num_layers = self.layout.blocks[-1], 2 * len(self.layout.blocks) - 2
        self.x = self.new(num_layers + 1, self.members, self.positions, self.layout.size.hidden)
        self.active = torch.empty_like(self.x)
        self.input(kernels.input_kernel, self.weights, self.x[0], self.active[0])
        for i in range(num_layers):
            residual = self.x[i - 1] if i % 2 else None
            self.convolve(self.layout.layers[1 + i], self.active[i], self.x[i + 1], self.active[i + 1], residual=residual)
        self.inner = self.new(self.members, self.positions, self.layout.size.width)
        self.inner_active, z = torch.empty_like(self.inner), torch.empty_like(self.inner)
        self.convolve(last[0], self.active[-1], self.inner, self.inner_active)
        self.convolve(last[2], self.x[-1], z)
        self.convolve(last[1], self.inner_active, z, residual=z)
        return self.contrast(z)

    def backward(self, upstream: Tensor) -> Tensor:
        """The gradient of the weights, given that of the losses."""
        last, num_layers = self.layout.blocks[-1], len(self.x) - 1
        of_weights, of_z = torch.empty_like(self.weights), torch.empty_like(self.inner)
        self.launch(
            kernels.pyramid_gradient_kernel, (self.length, self.views, self.members),
            self.pyramid, self.of_instance, self.of_temporal, upstream, of_z, self.tables.bounds, self.update, self.tables.keys,
            self.groups, self.views, *self.sizes(), **self.dropout,
        )  # fmt: skip
        of_inner, of_x = torch.empty_like(self.inner), torch.empty_like(self.x)
        self.pull(last[1], self.inner, of_z, of_inner)
        self.pull(last[2], self.x[-1], of_z, of_x[-1], is_active=False)
        self.pull(last[0], self.x[-1], of_inner, of_x[-1], residual=of_x[-1])
        for i in reversed(range(num_layers)):
            self.pull(self.layout.layers[1 + i], self.x[i], of_x[i + 1], of_x[i], residual=None if i % 2 else of_x[i + 2])
        layers = self.layout.layers[1 : 1 + num_layers]
        many = sum(layer.taps > 1 for layer in layers)  # these come first
        for begin, end in ((0, many), (many, num_layers)):
            if begin < end:
                self.weigh(layers[begin], self.active[begin:end], of_x[begin + 1 : end + 1], of_weights, begin, end - begin)
        self.weigh(last[0], self.active[-1], of_inner, of_weights, num_layers)
        self.weigh(last[1], self.inner_active, of_z, of_weights, num_layers)
        self.weigh(last[2], self.x[-1], of_z, of_weights, num_layers)
        self.input(kernels.input_weights_kernel, of_x[0], of_weights, of_weights)
        return of_weights

    def sizes(self) -> tuple[int, int, int, int]:
        return self.length, self.levels, self.size, self.layout.size.width

    def input(self, kernel: Any, source: Tensor, out: Tensor, active: Tensor) -> None:
        tables, (first, *_) = self.tables, self.layout.layers
        is_forward = kernel is kernels.input_kernel
        tile = (32 if self.is_large else 16) if is_forward else 64
        present = tables.given if tables.given is not None else tables.mask
        self.launch(
            kernel, (triton.cdiv(self.positions, tile) if is_forward else first.inputs + 1, self.members),
            tables.data, present.view(torch.uint8), tables.rows, tables.start, tables.mask.view(torch.uint8), self.update,
            source, out, active,
            self.row_size, self.groups, self.batch, self.length, tables.data.shape[1], first.inputs, first.outputs, self.positions,
            GIVEN=tables.given is not None, M=tile, OUT=triton.next_power_of_2(first.outputs),
        )  # fmt: skip

    def shape(self, layer: ConvLayer, **most: int) -> dict[str, Any]:
        """Sizes of a layer and of its tiles; a matmul has at least 16 of each."""
        tiles = {
            "IN": max(16, min(most.get("IN", 64), triton.next_power_of_2(layer.inputs))),
            "OUT": max(16, min(most.get("OUT", 64), triton.next_power_of_2(layer.outputs))),
        }
        return {"INPUTS": layer.inputs, "OUTPUTS": layer.outputs, "TAPS": layer.taps, "PRECISION": self.precision, **tiles}

    def convolve(
        self, layer: ConvLayer, x: Tensor, out: Tensor, active: Tensor | None = None, *, residual: Tensor | None = None
    ) -> None:
        """out = conv(x) + residual, and its gelu."""
        shape, tile = self.shape(layer, OUT=64 if self.is_large else 32), TILE if self.is_large else {"M": 16}
        self.launch(
            kernels.convolution_kernel,
            (triton.cdiv(self.positions, tile["M"]), triton.cdiv(layer.outputs, shape["OUT"]), self.members),
            x, self.weights, out if residual is None else residual, out, out if active is None else active, self.tables.bounds, self.update,
            int(residual is not None), self.groups, self.row_size, layer.begin, layer.dilation, self.length, self.positions,
            ACTIVE=active is not None, **tile, **shape,
        )  # fmt: skip

    def pull(
        self, layer: ConvLayer, x: Tensor, gradient: Tensor, out: Tensor, *, residual: Tensor | None = None, is_active: bool = True
    ) -> None:
        """out = the gradient of x, through gelu if it is active, plus a residual."""
        shape, tile = self.shape(layer, IN=64 if self.is_large else 32), TILE if self.is_large else {"M": 16}
        self.launch(
            kernels.input_gradient_kernel,
            (triton.cdiv(self.positions, tile["M"]), triton.cdiv(layer.inputs, shape["IN"]), self.members),
            x, self.weights, gradient, out if residual is None else residual, out, self.tables.bounds, self.update,
            int(residual is not None), self.groups, self.row_size, layer.begin, layer.dilation, self.length, self.positions,
            ACTIVE=is_active, **tile, **shape,
        )  # fmt: skip

    def weigh(self, layer: ConvLayer, x: Tensor, gradient: Tensor, out: Tensor, first: int, number: int = 1) -> None:
        """The gradients of the weights of layers of one shape, into their places in `out`."""
        shape = self.shape(layer)
        parts = triton.cdiv(layer.inputs, shape["IN"]) * layer.taps * triton.cdiv(layer.outputs, shape["OUT"])
        self.launch(
            kernels.weights_kernel, (parts, self.members, number),
            x, gradient, out, self.tables.bounds, self.update, self.members, self.groups, self.row_size, layer.begin, first,
            self.length, self.positions, LONG=self.length > LONG, **WEIGHT_TILE, **shape,
        )  # fmt: skip

    def contrast(self, z: Tensor) -> Tensor:
        """The losses of the representations, and what their gradient needs."""
        tables, terms, width = self.tables, self.terms, self.layout.size.width
        shape = self.members, self.views, self.size, width
        self.pyramid, self.of_instance, self.of_temporal = self.new(*shape), self.new(*shape), self.new(*shape)
        squares = self.new(*shape[:3])
        crop = tables.bounds, self.update
        self.launch(
            kernels.pyramid_kernel, (self.size, self.views, self.members),
            z, self.pyramid, squares, *crop, tables.keys, self.groups, self.views, *self.sizes(), **self.dropout,
        )  # fmt: skip
        tile = TEMPORAL_TILE if self.length > LONG else {**TEMPORAL_TILE, "ROWS": 32}
        blocks = sum(triton.cdiv(2 * (self.length >> level), tile["ROWS"]) for level in range(self.levels - 1))
        parts = self.new(self.members, self.size + self.batch * blocks)
        first = max(16, 1 << (width.bit_length() - 1))
        tiles = {"WIDTH": first, "WIDTH2": max(16, triton.next_power_of_2(max(1, width - first))), "PRECISION": self.precision}
        last = terms.amc_temporal if terms.compat else terms.amc_instance
        counts = self.groups, self.members, self.views, *self.sizes()
        self.launch(
            kernels.instance_kernel, (self.size, self.members),
            self.pyramid, squares, self.of_instance, parts, parts.shape[1], *crop, tables.tau,
            tables.tau if tables.target is None else tables.target, terms.amc_instance, last, terms.margin, *counts,
            TARGET=tables.target is not None, AMC=terms.has_amc, ROWS=max(16, triton.next_power_of_2(self.views)), **tiles,
        )  # fmt: skip
        sums = self.new(self.members, self.batch, 4, self.size)
        for is_gradient in (False, True):
            self.launch(
                kernels.temporal_kernel, (blocks, self.batch, self.members),
                self.pyramid, squares, self.of_temporal, parts, parts.shape[1], sums, *crop, tables.tau, terms.tau_temporal,
                terms.amc_temporal, terms.margin, *counts, SOFT=terms.has_soft_temporal, AMC=terms.has_amc, INSIDE=not terms.compat,
                GRADIENT=is_gradient, **tile, **tiles,
            )  # fmt: skip
        return parts.sum(1)
