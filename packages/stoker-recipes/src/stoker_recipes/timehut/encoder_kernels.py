"""Triton kernels of the encoder: the input layer, convolutions, and their gradients. Imported only on a GPU.

Activations are (K, N x T, channels) and stay at their step of the crop; a position outside of the crop acts as zero padding, as in
`encode`, and is neither read nor written. A convolution is one kernel: taps, crop, bias, residual, and gelu of the result for the next one.
"""

from __future__ import annotations

import triton
import triton.language as tl

VARIABLE = (
    *("has_residual", "dilation", "first_layer", "length", "num_levels", "size", "data_steps"),
    *("batch", "num_groups", "num_members", "num_parts", "positions", "channels"),
)
"""Integers that do not make a kernel of their own: one kernel serves all lengths of series and all numbers of members."""


@triton.jit
def _gelu(x):  # type: ignore[no-untyped-def]
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


@triton.jit
def _gelu_slope(x):  # type: ignore[no-untyped-def]
    return 0.5 * (1.0 + tl.erf(x * 0.7071067811865476)) + x * tl.exp(-0.5 * x * x) * 0.3989422804014327


@triton.jit
def bound(bounds, update, k, num_groups, which):  # type: ignore[no-untyped-def]
    """eleft, left, right or eright of a member in this update."""
    place = tl.load(update) * num_groups + tl.minimum(k, num_groups - 1)
    return tl.load(bounds + place * 4 + which).to(tl.int32)


@triton.jit
def _is_inside(bounds, update, k, num_groups, n, step):  # type: ignore[no-untyped-def]
    """Whether a view has a step; views alternate."""
    low = tl.where(n % 2 == 0, bound(bounds, update, k, num_groups, 0), bound(bounds, update, k, num_groups, 1))
    high = tl.where(n % 2 == 0, bound(bounds, update, k, num_groups, 2), bound(bounds, update, k, num_groups, 3))
    return (step >= low) & (step < high)


@triton.jit  # type: ignore[untyped-decorator]
def _series_place(rows, start, mask, given, update, k, num_groups, batch, n, t, length, data_steps, GIVEN: tl.constexpr, ok):  # type: ignore[no-untyped-def]
    """Where step t of view n lies in the data, and whether it is given."""
    row = (tl.load(update) * num_groups + tl.minimum(k, num_groups - 1)) * batch + n // 2
    begin = tl.load(start + row, mask=ok, other=0)
    series = tl.load(rows + row, mask=ok, other=0)
    place = tl.minimum(tl.maximum(begin + t, 0), data_steps - 1) + series * data_steps
    keep = tl.load(mask + (row * 2 + n % 2) * length + t, mask=ok, other=0) != 0
    if GIVEN:
        keep = keep & (tl.load(given + place, mask=ok, other=0) != 0)
    return place, keep


@triton.jit(do_not_specialize=VARIABLE)  # type: ignore[untyped-decorator]
def input_kernel(  # type: ignore[no-untyped-def]
    data, given, rows, start, mask, update, weights, out, active,
    row_size, num_groups, batch, length, data_steps, channels, outputs, positions,
    GIVEN: tl.constexpr, M: tl.constexpr, OUT: tl.constexpr,
):  # fmt: skip
    """A tile of positions of the first layer, 0 where masked, and its gelu."""
    m = tl.program_id(0) * M + tl.arange(0, M)
    k = tl.program_id(1).to(tl.int64)
    o = tl.arange(0, OUT)
    ok = m < positions
    place, keep = _series_place(
        rows, start, mask, given, update, k, num_groups, batch, m // length, m % length, length, data_steps, GIVEN, ok
    )
    own = weights + k * row_size
    is_output = o < outputs
    bias = tl.load(own + channels * outputs + o, mask=is_output, other=0.0)
    total = tl.zeros((M, OUT), out.dtype.element_ty) + bias[None, :]
    for d in range(0, channels):
        x = tl.load(data + place * channels + d, mask=ok, other=0.0)
        total += x[:, None] * tl.load(own + d * outputs + o, mask=is_output, other=0.0)[None, :]
    total = tl.where(keep[:, None], total, 0.0)
    where = k * positions * outputs + m[:, None] * outputs + o[None, :]
    tl.store(out + where, total, mask=ok[:, None] & is_output[None, :])
    tl.store(active + where, _gelu(total), mask=ok[:, None] & is_output[None, :])


@triton.jit(do_not_specialize=VARIABLE)  # type: ignore[untyped-decorator]
def input_weights_kernel(  # type: ignore[no-untyped-def]
    data, given, rows, start, mask, update, gradient, out, active,
    row_size, num_groups, batch, length, data_steps, channels, outputs, positions,
    GIVEN: tl.constexpr, M: tl.constexpr, OUT: tl.constexpr,
):  # fmt: skip
    """The gradient of the weights of one channel in the first layer, or of its bias."""
    d = tl.program_id(0)  # the last one is the bias
    k = tl.program_id(1).to(tl.int64)
    o = tl.arange(0, OUT)
    is_output = o < outputs
    total = tl.zeros((OUT,), out.dtype.element_ty)
    for first in range(0, positions, M):
        m = first + tl.arange(0, M)
        ok = m < positions
        place, keep = _series_place(
            rows, start, mask, given, update, k, num_groups, batch, m // length, m % length, length, data_steps, GIVEN, ok
        )
        x = tl.load(data + place * channels + d, mask=ok & keep & (d < channels), other=0.0)
        x = tl.where(d < channels, x, tl.where(ok & keep, 1.0, 0.0).to(x.dtype))
        where = gradient + k * positions * outputs + m[:, None] * outputs + o[None, :]
        total += tl.sum(x[:, None] * tl.load(where, mask=(ok & keep)[:, None] & is_output[None, :], other=0.0), 0)
    tl.store(out + k * row_size + d * outputs + o, total, mask=is_output)


@triton.jit(do_not_specialize=VARIABLE)  # type: ignore[untyped-decorator]
def convolution_kernel(  # type: ignore[no-untyped-def]
    x, weights, residual, out, active, bounds, update, has_residual, num_groups, row_size, begin, dilation, length, positions,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, TAPS: tl.constexpr, ACTIVE: tl.constexpr,
    M: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of positions and outputs of conv(x) + bias + residual, and if ACTIVE its gelu."""
    m = tl.program_id(0) * M + tl.arange(0, M)
    o = tl.program_id(1) * OUT + tl.arange(0, OUT)
    k = tl.program_id(2).to(tl.int64)
    own = weights + k * row_size + begin
    ok = (m < positions) & _is_inside(bounds, update, k, num_groups, m // length, m % length)
    if tl.max(ok.to(tl.int32), 0) == 0:
        return
    total = tl.zeros((M, OUT), out.dtype.element_ty)
    for tap in tl.static_range(TAPS):
        shift = (tap - TAPS // 2) * dilation
        is_given = ok
        if TAPS > 1:
            is_given = ok & _is_inside(bounds, update, k, num_groups, m // length, m % length + shift)
        for first in range(0, INPUTS, IN):
            c = first + tl.arange(0, IN)
            where = x + k * positions * INPUTS + (m + shift)[:, None] * INPUTS + c[None, :]
            a = tl.load(where, mask=is_given[:, None] & (c < INPUTS)[None, :], other=0.0)
            w = tl.load(own + (tap * INPUTS + c)[:, None] * OUTPUTS + o[None, :],
                        mask=(c < INPUTS)[:, None] & (o < OUTPUTS)[None, :], other=0.0)  # fmt: skip
            total = tl.dot(a, w, total, input_precision=PRECISION, out_dtype=total.dtype)
    total += tl.load(own + TAPS * INPUTS * OUTPUTS + o, mask=o < OUTPUTS, other=0.0)[None, :]
    place = k * positions * OUTPUTS + m[:, None] * OUTPUTS + o[None, :]
    inside = ok[:, None] & (o < OUTPUTS)[None, :]
    total += tl.load(residual + place, mask=inside & (has_residual != 0), other=0.0)
    tl.store(out + place, total, mask=inside)
    if ACTIVE:
        tl.store(active + place, _gelu(total), mask=inside)


@triton.jit(do_not_specialize=VARIABLE)  # type: ignore[untyped-decorator]
def input_gradient_kernel(  # type: ignore[no-untyped-def]
    x, weights, gradient, residual, out, bounds, update, has_residual, num_groups, row_size, begin, dilation, length, positions,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, TAPS: tl.constexpr, ACTIVE: tl.constexpr,
    M: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of positions and inputs of the gradient of x, through gelu if ACTIVE, plus a gradient that reaches x another way."""
    m = tl.program_id(0) * M + tl.arange(0, M)
    c = tl.program_id(1) * IN + tl.arange(0, IN)
    k = tl.program_id(2).to(tl.int64)
    own = weights + k * row_size + begin
    ok = (m < positions) & _is_inside(bounds, update, k, num_groups, m // length, m % length)
    if tl.max(ok.to(tl.int32), 0) == 0:
        return
    total = tl.zeros((M, IN), out.dtype.element_ty)
    for tap in tl.static_range(TAPS):
        shift = (tap - TAPS // 2) * dilation
        is_given = ok
        if TAPS > 1:
            is_given = ok & _is_inside(bounds, update, k, num_groups, m // length, m % length - shift)
        for first in range(0, OUTPUTS, OUT):
            o = first + tl.arange(0, OUT)
            where = gradient + k * positions * OUTPUTS + (m - shift)[:, None] * OUTPUTS + o[None, :]
            g = tl.load(where, mask=is_given[:, None] & (o < OUTPUTS)[None, :], other=0.0)
            w = tl.load(own + (tap * INPUTS + c)[None, :] * OUTPUTS + o[:, None],
                        mask=(c < INPUTS)[None, :] & (o < OUTPUTS)[:, None], other=0.0)  # fmt: skip
            total = tl.dot(g, w, total, input_precision=PRECISION, out_dtype=total.dtype)
    place = k * positions * INPUTS + m[:, None] * INPUTS + c[None, :]
    inside = ok[:, None] & (c < INPUTS)[None, :]
    if ACTIVE:
        total *= _gelu_slope(tl.load(x + place, mask=inside, other=0.0))
    total += tl.load(residual + place, mask=inside & (has_residual != 0), other=0.0)
    tl.store(out + place, total, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _add_weights(  # type: ignore[no-untyped-def]
    x, gradient, m, ok, is_given, shift, c, o, total, bias, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    a = tl.load(x + (m + shift)[:, None] * INPUTS + c[None, :], mask=is_given[:, None] & (c < INPUTS)[None, :], other=0.0)
    g = tl.load(gradient + m[:, None] * OUTPUTS + o[None, :], mask=ok[:, None] & (o < OUTPUTS)[None, :], other=0.0)
    total = tl.dot(tl.trans(a), g, total, input_precision=PRECISION, out_dtype=total.dtype)
    return total, bias + tl.sum(g, 0)


@triton.jit(do_not_specialize=VARIABLE)  # type: ignore[untyped-decorator]
def weights_kernel(  # type: ignore[no-untyped-def]
    x, gradient, out, bounds, update, num_members, num_groups, row_size, begin, first_layer, length, positions,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, TAPS: tl.constexpr, LONG: tl.constexpr,
    M: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of the gradient of one tap of one layer; layers of the same shape follow each other in x, gradient and out.

    `first_layer` counts convolutions from the first block on: two per block, and block i has dilation 2^i.
    """
    k = tl.program_id(1).to(tl.int64)
    layer = tl.program_id(2)
    tiles: tl.constexpr = (OUTPUTS + OUT - 1) // OUT
    o = tl.program_id(0) % tiles * OUT + tl.arange(0, OUT)
    c = tl.program_id(0) // tiles // TAPS * IN + tl.arange(0, IN)
    tap = tl.program_id(0) // tiles % TAPS
    shift = (tap - TAPS // 2) << ((first_layer + layer) // 2)
    x += (layer * num_members + k) * positions * INPUTS
    gradient += (layer * num_members + k) * positions * OUTPUTS
    total = tl.zeros((IN, OUT), out.dtype.element_ty)
    bias = tl.zeros((OUT,), out.dtype.element_ty)
    if LONG:  # view by view, only its steps
        for n in range(0, positions // length):
            low = bound(bounds, update, k, num_groups, n % 2)
            high = bound(bounds, update, k, num_groups, n % 2 + 2)
            for first in range(low, high, M):
                t = first + tl.arange(0, M)
                is_given = (t < high) & (t + shift >= low) & (t + shift < high)
                total, bias = _add_weights(
                    x, gradient, n * length + t, t < high, is_given, shift, c, o, total, bias, INPUTS, OUTPUTS, PRECISION
                )
    else:
        for first in range(0, positions, M):
            m = first + tl.arange(0, M)
            ok = (m < positions) & _is_inside(bounds, update, k, num_groups, m // length, m % length)
            is_given = ok & _is_inside(bounds, update, k, num_groups, m // length, m % length + shift)
            total, bias = _add_weights(x, gradient, m, ok, is_given, shift, c, o, total, bias, INPUTS, OUTPUTS, PRECISION)
    out += k * row_size + begin + layer * (TAPS * INPUTS * OUTPUTS + OUTPUTS)
    inside = (c < INPUTS)[:, None] & (o < OUTPUTS)[None, :]
    tl.store(out + (tap * INPUTS + c)[:, None] * OUTPUTS + o[None, :], total, mask=inside)
    if tl.program_id(0) < tiles:
        tl.store(out + TAPS * INPUTS * OUTPUTS + o, bias, mask=o < OUTPUTS)
