"""Triton kernels: the cross-entropies of all heads in one launch, and the draw of a sub-column in one launch.

    weighted_losses    losses of all heads, and the gradient of every logit in its place: one pass for the sums, one for the gradient
    draw_column        first layer, ReLU, last layer, softmax with temperature, inversion, the code and its embedding: one block of rows

Sums have a fixed order and a row never depends on others, so the same numbers come out in any batch. The code in torch that they replace
(`TabularModel.forward`, `generation.draw`) is used on a CPU, and tests compare with it. Imported only on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

ROWS = 32
"""Rows of a block."""
MOST_INPUTS = 64
"""Classes or inputs that a block reads at once."""


@triton.jit(do_not_specialize=["num_rows", "num_blocks"])  # type: ignore[untyped-decorator]
def _losses_kernel(  # type: ignore[no-untyped-def]
    logits, firsts, strides, sizes, codes, members, weights, kinds, losses, num_rows, num_subs, num_kinds, num_blocks,
    ROWS: tl.constexpr, CLASSES: tl.constexpr,
):  # fmt: skip
    """One head of a block of rows: its weighted loss; logits become gradients."""
    block, head = tl.program_id(0), tl.program_id(1)
    row = block * ROWS + tl.arange(0, ROWS)
    is_row = row < num_rows
    stride, size = tl.load(strides + head), tl.load(sizes + head)
    at = logits + tl.load(firsts + head) + row.to(tl.int64) * stride
    place = row.to(tl.int64)
    target = tl.load(codes + place * num_subs + tl.load(members + head), mask=is_row, other=0)
    weight = tl.load(weights + place * num_kinds + tl.load(kinds + head), mask=is_row, other=0.0)
    most = tl.full((ROWS,), -float("inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    own = tl.zeros((ROWS,), tl.float32)
    for first in range(0, size, CLASSES):
        column = first + tl.arange(0, CLASSES)
        mask = is_row[:, None] & (column < size)[None, :]
        value = tl.load(at[:, None] + column[None, :], mask=mask, other=-float("inf"))
        higher = tl.maximum(most, tl.max(value, 1))
        safe = tl.where(is_row, higher, 0.0)
        total = total * tl.exp(most - safe) + tl.sum(tl.exp(value - safe[:, None]), 1)
        own += tl.sum(tl.where(column[None, :] == target[:, None], tl.where(mask, value, 0.0), 0.0), 1)
        most = higher
    most = tl.where(is_row, most, 0.0)
    total = tl.where(is_row, total, 1.0)
    loss = tl.where(is_row, (most + tl.log(total) - own) * weight, 0.0)
    tl.store(losses + head * num_blocks + block, tl.sum(loss, 0))
    for first in range(0, stride, CLASSES):
        column = first + tl.arange(0, CLASSES)
        inside = is_row[:, None] & (column < stride)[None, :]
        mask = inside & (column < size)[None, :]
        value = tl.load(at[:, None] + column[None, :], mask=mask, other=0.0)
        chance = tl.exp(value - most[:, None]) / total[:, None]
        gradient = (chance - tl.where(column[None, :] == target[:, None], 1.0, 0.0)) * weight[:, None]
        tl.store(at[:, None] + column[None, :], tl.where(mask, gradient, 0.0), mask=inside)


@dataclass(frozen=True, kw_only=True)
class HeadPlan:
    """Where the logits of heads lie: groups (heads, rows, classes), one behind the other. Tensors with one number per head."""

    groups: tuple[tuple[int, int], ...]
    """Heads and classes of each group."""
    members: torch.Tensor
    """The sub-column of each head."""
    sizes: torch.Tensor
    """Its classes."""
    kinds: torch.Tensor
    """Its column of the weights."""
    before: torch.Tensor
    """Logits of a row in the heads before it."""
    strides: torch.Tensor
    """Logits of a row in the head: the classes of the largest head of its group."""


class _HeadLosses(torch.autograd.Function):
    """The last layers of all heads, and the sum of their weighted cross-entropies."""

    @staticmethod
    def forward(ctx: Any, plan: HeadPlan, codes: torch.Tensor, weights: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
        """Inputs of the last layers, their weights and their biases, each of all groups."""
        count, rows = len(plan.groups), len(codes)
        inputs, matrices, biases = given[:count], given[count : 2 * count], given[2 * count :]
        logits = inputs[0].new_empty(rows * sum(heads * classes for heads, classes in plan.groups))
        views, at = [], 0
        for (heads, classes), one, matrix, bias in zip(plan.groups, inputs, matrices, biases, strict=True):
            views.append(logits[at : at + heads * rows * classes].view(heads, rows, classes))
            torch.baddbmm(bias, one, matrix, out=views[-1])
            at += heads * rows * classes
        loss = weighted_losses(logits, plan, codes, weights)
        ctx.save_for_backward(logits, *inputs, *matrices)
        ctx.plan = plan
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Gradients of inputs, weights and biases."""
        count = len(ctx.plan.groups)
        logits, inputs, matrices = ctx.saved_tensors[0], ctx.saved_tensors[1 : 1 + count], ctx.saved_tensors[1 + count :]
        logits, at = logits * gradients[0], 0
        found: tuple[list[torch.Tensor], ...] = ([], [], [])
        for (heads, classes), one, matrix in zip(ctx.plan.groups, inputs, matrices, strict=True):
            own = logits[at : at + heads * one.shape[1] * classes].view(heads, -1, classes)
            found[0].append(torch.bmm(own, matrix.transpose(1, 2)))
            found[1].append(torch.bmm(one.transpose(1, 2), own))
            found[2].append(own.sum(1, keepdim=True))
            at += own.numel()
        return None, None, None, *found[0], *found[1], *found[2]


def head_losses(
    plan: HeadPlan, codes: torch.Tensor, weights: torch.Tensor, inputs: Sequence[torch.Tensor], matrices: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor],
) -> torch.Tensor:  # fmt: skip
    """The sum of the weighted cross-entropies of all heads.

    Args:
        plan: Of the heads.
        codes: (rows, sub-columns)
        weights: (rows, kinds)
        inputs: Of the last layers, (heads, rows, width) of each group.
        matrices: Their weights, (heads, width, classes).
        biases: (heads, 1, classes)
    """
    found: torch.Tensor = _HeadLosses.apply(plan, codes, weights, *inputs, *matrices, *biases)  # type: ignore[no-untyped-call]
    return found


def weighted_losses(logits: torch.Tensor, plan: HeadPlan, codes: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The weighted loss of logits, which become its gradient."""
    rows, blocks = len(codes), triton.cdiv(len(codes), ROWS)
    losses = logits.new_empty(len(plan.members), blocks)
    firsts = plan.before * rows
    codes, weights = codes.contiguous(), weights.contiguous()
    widest = max(classes for _, classes in plan.groups)
    _losses_kernel[(blocks, len(plan.members))](
        logits, firsts, plan.strides, plan.sizes, codes, plan.members, weights, plan.kinds, losses, rows, codes.shape[1],
        weights.shape[1], blocks, ROWS=ROWS, CLASSES=min(MOST_INPUTS, max(16, triton.next_power_of_2(widest))),
    )  # fmt: skip
    return losses.sum()


# One kernel serves all heads with as many hidden units, up to the next power of two.
@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["base_stride", "input_stride", "num_inputs", "number_stride", "code_stride", "num_rows", "num_classes",
    "num_hidden", "width", "into", "temperature"], do_not_specialize_on_alignment=["base", "numbers", "codes"],
)  # fmt: skip
def _draw_kernel(  # type: ignore[no-untyped-def]
    base, base_stride, inputs, input_stride, seen, num_inputs, matrix, bias, numbers, number_stride, table, codes, code_stride,
    num_rows, num_classes, num_hidden, width, into, temperature,
    ROWS: tl.constexpr, INPUTS: tl.constexpr, HIDDEN: tl.constexpr, CLASSES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """A block of rows: the head, the draw, and the embedding of what was drawn."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    is_row = row < num_rows
    unit = tl.arange(0, HIDDEN)
    is_unit = unit < num_hidden
    hidden = tl.load(base + row[:, None] * base_stride + unit[None, :], mask=is_row[:, None] & is_unit[None, :], other=0.0)
    for first in range(0, num_inputs, INPUTS):
        part = first + tl.arange(0, INPUTS)
        is_part = part < num_inputs
        value = tl.load(inputs + row[:, None] * input_stride + part[None, :], mask=is_row[:, None] & is_part[None, :], other=0.0)
        factor = tl.load(seen + part[:, None] * num_hidden + unit[None, :], mask=is_part[:, None] & is_unit[None, :], other=0.0)
        hidden = tl.dot(value, factor, hidden, input_precision="ieee")
    hidden = tl.maximum(hidden, 0.0)
    # The sum of all chances first, then the class at which the sum so far reaches its part.
    most = tl.full((ROWS,), -float("inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    for first in range(0, num_classes, CLASSES):
        column = first + tl.arange(0, CLASSES)
        is_class = column < num_classes
        factor = tl.load(
            matrix + unit[:, None] * num_classes + column[None, :], mask=is_unit[:, None] & is_class[None, :], other=0.0
        )
        logit = (
            tl.dot(hidden, factor, input_precision="ieee") + tl.load(bias + column, mask=is_class, other=0.0)[None, :]
        ) / temperature
        logit = tl.where(is_class[None, :], logit, -float("inf"))
        higher = tl.maximum(most, tl.max(logit, 1))
        total = total * tl.exp(most - higher) + tl.sum(tl.exp(logit - higher[:, None]), 1)
        most = higher
    limit = tl.load(numbers + row * number_stride, mask=is_row, other=1.0) * total
    before = tl.zeros((ROWS,), tl.float32)
    code = tl.zeros((ROWS,), tl.int32)
    last = tl.zeros((ROWS,), tl.int32)
    for first in range(0, num_classes, CLASSES):
        column = first + tl.arange(0, CLASSES)
        is_class = column < num_classes
        factor = tl.load(
            matrix + unit[:, None] * num_classes + column[None, :], mask=is_unit[:, None] & is_class[None, :], other=0.0
        )
        logit = (
            tl.dot(hidden, factor, input_precision="ieee") + tl.load(bias + column, mask=is_class, other=0.0)[None, :]
        ) / temperature
        chance = tl.where(is_class[None, :], tl.exp(logit - most[:, None]), 0.0)
        upto = before[:, None] + tl.cumsum(chance, 1)
        last = tl.maximum(last, tl.max(tl.where(chance > 0, column[None, :], 0), 1))
        code += tl.sum(tl.where(is_class[None, :] & (upto < limit[:, None]), 1, 0), 1)
        before += tl.sum(chance, 1)
    code = tl.minimum(code, last)  # rounding must not draw a class without a chance
    tl.store(codes + row * code_stride, code.to(tl.int64), mask=is_row)
    place = tl.arange(0, WIDTH)
    is_place = is_row[:, None] & (place < width)[None, :]
    found = tl.load(table + code.to(tl.int64)[:, None] * width + place[None, :], mask=is_place, other=0.0)
    tl.store(inputs + row[:, None] * input_stride + into + place[None, :], found, mask=is_place)


def draw_column(
    base: torch.Tensor, inputs: torch.Tensor, seen: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor, numbers: torch.Tensor,
    table: torch.Tensor, codes: torch.Tensor, *, into: int, temperature: float = 1.0,
) -> None:  # fmt: skip
    """Draw a sub-column: write its codes, and their embeddings into `inputs`.

    Args:
        base: What context and history give to the head, (rows, hidden).
        inputs: Embeddings of an event that are known so far, (rows, inputs).
        seen: The first layer of the head, (inputs, hidden).
        matrix: Its last layer, (hidden, classes).
        bias: Of the last layer.
        numbers: From (0, 1], (rows,).
        table: The embeddings of classes, (classes, width).
        codes: Where the drawn classes go, (rows,).
        into: Where their embeddings begin in `inputs`.
        temperature: Below 1 makes likely classes likelier.
    """
    rows, (num_hidden, num_classes) = len(base), matrix.shape
    _draw_kernel[(triton.cdiv(rows, ROWS),)](
        base, base.stride(0), inputs, inputs.stride(0), seen, inputs.shape[1], matrix, bias, numbers, numbers.stride(0), table, codes,
        codes.stride(0), rows, num_classes, num_hidden, table.shape[1], into, max(float(temperature), 1e-3),
        ROWS=ROWS, INPUTS=MOST_INPUTS, HIDDEN=max(16, triton.next_power_of_2(num_hidden)),
        CLASSES=MOST_INPUTS, WIDTH=max(32, triton.next_power_of_2(table.shape[1])),
    )  # fmt: skip
