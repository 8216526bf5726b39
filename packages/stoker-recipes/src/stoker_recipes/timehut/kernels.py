"""Triton kernels of the encoder (input layer, convolutions), of the losses, and of their gradients. Imported only on a GPU.

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
def _series_place(rows, start, mask, present, update, k, num_groups, batch, n, t, length, data_steps, GIVEN: tl.constexpr, ok):  # type: ignore[no-untyped-def]
    """Where step t of view n lies in the data, and whether it is given."""
    row = (tl.load(update) * num_groups + tl.minimum(k, num_groups - 1)) * batch + n // 2
    begin = tl.load(start + row, mask=ok, other=0)
    series = tl.load(rows + row, mask=ok, other=0)
    place = tl.minimum(tl.maximum(begin + t, 0), data_steps - 1) + series * data_steps
    keep = tl.load(mask + (row * 2 + n % 2) * length + t, mask=ok, other=0) != 0
    if GIVEN:
        keep = keep & (tl.load(present + place, mask=ok, other=0) != 0)
    return place, keep


@triton.jit(do_not_specialize=VARIABLE)  # type: ignore[untyped-decorator]
def input_kernel(  # type: ignore[no-untyped-def]
    data, present, rows, start, mask, update, weights, out, active,
    row_size, num_groups, batch, length, data_steps, channels, outputs, positions,
    GIVEN: tl.constexpr, M: tl.constexpr, OUT: tl.constexpr,
):  # fmt: skip
    """A tile of positions of the first layer, 0 where masked, and its gelu."""
    m = tl.program_id(0) * M + tl.arange(0, M)
    k = tl.program_id(1).to(tl.int64)
    o = tl.arange(0, OUT)
    ok = m < positions
    place, keep = _series_place(
        rows, start, mask, present, update, k, num_groups, batch, m // length, m % length, length, data_steps, GIVEN, ok
    )
    row_weights = weights + k * row_size
    is_output = o < outputs
    bias = tl.load(row_weights + channels * outputs + o, mask=is_output, other=0.0)
    total = tl.zeros((M, OUT), out.dtype.element_ty) + bias[None, :]
    for d in range(0, channels):
        x = tl.load(data + place * channels + d, mask=ok, other=0.0)
        total += x[:, None] * tl.load(row_weights + d * outputs + o, mask=is_output, other=0.0)[None, :]
    total = tl.where(keep[:, None], total, 0.0)
    where = k * positions * outputs + m[:, None] * outputs + o[None, :]
    tl.store(out + where, total, mask=ok[:, None] & is_output[None, :])
    tl.store(active + where, _gelu(total), mask=ok[:, None] & is_output[None, :])


@triton.jit(do_not_specialize=VARIABLE)  # type: ignore[untyped-decorator]
def input_weights_kernel(  # type: ignore[no-untyped-def]
    data, present, rows, start, mask, update, gradient, out, active,
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
            rows, start, mask, present, update, k, num_groups, batch, m // length, m % length, length, data_steps, GIVEN, ok
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
    layer_weights = weights + k * row_size + begin
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
            w = tl.load(layer_weights + (tap * INPUTS + c)[:, None] * OUTPUTS + o[None, :],
                        mask=(c < INPUTS)[:, None] & (o < OUTPUTS)[None, :], other=0.0)  # fmt: skip
            total = tl.dot(a, w, total, input_precision=PRECISION, out_dtype=total.dtype)
    total += tl.load(layer_weights + TAPS * INPUTS * OUTPUTS + o, mask=o < OUTPUTS, other=0.0)[None, :]
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
    layer_weights = weights + k * row_size + begin
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
            w = tl.load(layer_weights + (tap * INPUTS + c)[None, :] * OUTPUTS + o[:, None],
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


# ---- losses ----
#     pyramid      the overlap of both views, with dropout, and its levels of max pooling; and back
#     instance     per position of a level: loss and gradient over the 2B views of all series
#     temporal     per series and block of rows: loss, then gradient, over all steps of a level, without storing the dot products
# Sums have a fixed order, so the same seed gives the same bits.

CLAMP = tl.constexpr(1e-6)  # as in `losses`
AMC_DIVISOR = tl.constexpr(25.0)
LOW = tl.constexpr(-1e30)


@triton.jit
def _acos(x):  # type: ignore[no-untyped-def]
    """From the series of asin, which 14 terms give to 1e-10 up to 0.5; beyond, by acos(x) = 2 asin(sqrt((1 - x) / 2))."""
    a = tl.abs(x)
    is_outer = a > 0.5
    z = tl.where(is_outer, 0.5 * (1.0 - a), a * a)
    s = tl.where(is_outer, tl.sqrt(z), a)
    y = 0.005740037671 * z + 0.006447210312
    y = y * z + 0.007312525874
    y = y * z + 0.008390335810
    y = y * z + 0.00976160953
    y = y * z + 0.01155180090
    y = y * z + 0.01396484375
    y = y * z + 0.01735276442
    y = y * z + 0.02237215909
    y = y * z + 0.03038194444
    y = y * z + 0.04464285714
    y = y * z + 0.075
    y = y * z + 0.16666666666666666
    y = s * (y * z + 1.0)
    near = tl.where(is_outer, 2.0 * y, 1.5707963267948966 - y)
    return tl.where(x < 0, 3.141592653589793 - near, near)


@triton.jit
def _mix(x):  # type: ignore[no-untyped-def]
    """The integer hash of `dropout_scale`."""
    x = (x ^ (x >> 16)) * 2146121005
    x = (x ^ (x >> 15)) * 2221713035
    return (x ^ (x >> 16)) & 0x7FFFFFFF


@triton.jit  # type: ignore[untyped-decorator]
def _dropout(keys, update, k, n, step, c, length, width, num_groups, THRESHOLD: tl.constexpr, SCALE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The factors of `dropout_scale`."""
    key = tl.load(keys + tl.minimum(k, num_groups - 1)).to(tl.uint32)
    mixed = _mix((key * 2654435769) ^ (tl.load(update).to(tl.uint32) * 40503 + 1))
    place = (n * (length * width) + step * width + c).to(tl.uint32)
    return tl.where(_mix(place * 3266489917 + mixed) >= THRESHOLD, SCALE, 0.0)


@triton.jit(do_not_specialize=VARIABLE)  # type: ignore[untyped-decorator]
def pyramid_kernel(  # type: ignore[no-untyped-def]
    z, out, squares, bounds, update, keys, num_groups, num_views, length, num_levels, size, width,
    THRESHOLD: tl.constexpr, SCALE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One position of one level of one view: the largest value of 2^level steps of the overlap, after dropout; and its squared norm."""
    s = tl.program_id(0)
    n = tl.program_id(1)
    k = tl.program_id(2).to(tl.int64)
    c = tl.arange(0, WIDTH)
    level = 0
    p = s
    steps = length
    for _ in range(num_levels - 1):
        is_later = p >= steps
        p = tl.where(is_later, p - steps, p)
        level = tl.where(is_later, level + 1, level)
        steps = tl.where(is_later, steps // 2, steps)
    left = bound(bounds, update, k, num_groups, 1)
    overlap = bound(bounds, update, k, num_groups, 2) - left
    if p < (overlap >> level):
        best = tl.zeros((WIDTH,), out.dtype.element_ty) + LOW
        for i in range(0, 1 << level):
            step = (p << level) + i
            value = tl.load(z + ((k * num_views + n) * length + left + step) * width + c, mask=c < width, other=0.0)
            value *= _dropout(keys, update, k, n, step, c, length, width, num_groups, THRESHOLD, SCALE)
            best = tl.maximum(best, value, propagate_nan=tl.PropagateNan.ALL)
        best = tl.where(c < width, best, 0.0)
        tl.store(out + ((k * num_views + n) * size + s) * width + c, best, mask=c < width)
        tl.store(squares + (k * num_views + n) * size + s, tl.sum(best * best, 0))


@triton.jit(do_not_specialize=VARIABLE)  # type: ignore[untyped-decorator]
def pyramid_gradient_kernel(  # type: ignore[no-untyped-def]
    pyramid, of_instance, of_temporal, upstream, out, bounds, update, keys, num_groups, num_views, length, num_levels, size, width,
    THRESHOLD: tl.constexpr, SCALE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The gradient of one step of one view, from all levels; of two equal values each gets half, as by `torch.maximum`."""
    t = tl.program_id(0)
    n = tl.program_id(1)
    k = tl.program_id(2).to(tl.int64)
    c = tl.arange(0, WIDTH)
    is_channel = c < width
    left = bound(bounds, update, k, num_groups, 1)
    overlap = bound(bounds, update, k, num_groups, 2) - left
    step = t - left
    place = out + ((k * num_views + n) * length + t) * width + c
    if (step < 0) | (step >= overlap):
        tl.store(place, tl.zeros((WIDTH,), out.dtype.element_ty), mask=is_channel)
    else:
        view = (k * num_views + n) * size * width + c
        total = tl.load(of_instance + view + step * width, mask=is_channel, other=0.0)
        if overlap >= 2:
            total += tl.load(of_temporal + view + step * width, mask=is_channel, other=0.0)
        share = tl.zeros((WIDTH,), out.dtype.element_ty) + 1.0
        below = 0
        first = length
        steps = length // 2
        for level in range(1, num_levels):
            child = step >> (level - 1)
            parent = step >> level
            is_valid = is_channel & (parent < (overlap >> level))
            mine = tl.load(pyramid + view + (below + child) * width, mask=is_valid, other=0.0)
            other = tl.load(pyramid + view + (below + (child ^ 1)) * width, mask=is_valid, other=0.0)
            share = tl.where(mine > other, share, tl.where(mine == other, 0.5 * share, 0.0))
            of_level = tl.load(of_instance + view + (first + parent) * width, mask=is_valid, other=0.0)
            of_level += tl.load(of_temporal + view + (first + parent) * width, mask=is_valid & ((overlap >> level) >= 2), other=0.0)
            total += share * of_level
            below = first
            first += steps
            steps = steps // 2
        total *= _dropout(keys, update, k, n, step, c, length, width, num_groups, THRESHOLD, SCALE) * tl.load(upstream + k)
        tl.store(place, total, mask=is_channel)


@triton.jit
def _half(overlap):  # type: ignore[no-untyped-def]
    """0.5 / number of levels."""
    levels = 0
    for power in tl.static_range(31):
        levels += ((overlap >> power) > 0).to(tl.int32)
    return 0.5 / levels


@triton.jit
def _angles(dots, squares, other_squares, is_positive, is_pair, margin):  # type: ignore[no-untyped-def]
    """Per pair: its part of the angular margin, the derivative of that by the cosine, the cosine, and cosine / dot product."""
    scale = tl.rsqrt(tl.maximum(squares, 1e-24))[:, None] * tl.rsqrt(tl.maximum(other_squares, 1e-24))[None, :]
    cosine = dots * scale
    clamped = tl.minimum(tl.maximum(cosine, -1.0 + CLAMP), 1.0 - CLAMP)
    angle = _acos(clamped)
    apart = tl.maximum(margin - angle, 0.0)
    term = tl.where(is_positive, angle, -apart)
    slope = -2.0 * term * tl.rsqrt((1.0 - clamped) * (1.0 + clamped))
    return tl.where(is_pair, term * term, 0.0), tl.where(is_pair & (clamped == cosine), slope, 0.0), cosine, scale


@triton.jit  # type: ignore[untyped-decorator]
def _vectors(source, place, is_given, width, WIDTH: tl.constexpr, WIDTH2: tl.constexpr):  # type: ignore[no-untyped-def]
    """Vectors from these places, in two parts: a tile has a power of two as its width, and 320 is not one."""
    c = tl.arange(0, WIDTH)
    c2 = WIDTH + tl.arange(0, WIDTH2)
    first = tl.load(source + place[:, None] + c[None, :], mask=is_given[:, None] & (c < width)[None, :], other=0.0)
    second = tl.load(source + place[:, None] + c2[None, :], mask=is_given[:, None] & (c2 < width)[None, :], other=0.0)
    return first, second


@triton.jit  # type: ignore[untyped-decorator]
def _store_vectors(out, place, is_given, width, first, second, WIDTH: tl.constexpr, WIDTH2: tl.constexpr):  # type: ignore[no-untyped-def]
    c = tl.arange(0, WIDTH)
    c2 = WIDTH + tl.arange(0, WIDTH2)
    tl.store(out + place[:, None] + c[None, :], first, mask=is_given[:, None] & (c < width)[None, :])
    tl.store(out + place[:, None] + c2[None, :], second, mask=is_given[:, None] & (c2 < width)[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def _dots(  # type: ignore[no-untyped-def]
    source, place, is_row, where, is_column, width,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Dot products of vectors at two lists of places, a chunk of channels at a time: whole vectors would not fit into registers."""
    total = tl.zeros((ROWS, COLUMNS), source.dtype.element_ty)
    for begin in range(0, width, CHUNK):
        c = begin + tl.arange(0, CHUNK)
        a = tl.load(source + place[:, None] + c[None, :], mask=is_row[:, None] & (c < width)[None, :], other=0.0)
        b = tl.load(source + where[:, None] + c[None, :], mask=is_column[:, None] & (c < width)[None, :], other=0.0)
        total = tl.dot(a, tl.trans(b), total, input_precision=PRECISION, out_dtype=total.dtype)
    return total


@triton.jit(do_not_specialize=VARIABLE)  # type: ignore[untyped-decorator]
def instance_kernel(  # type: ignore[no-untyped-def]
    pyramid, squares, out, parts, num_parts, bounds, update, tau, target, amc, amc_last, margin,
    num_groups, num_members, num_views, length, num_levels, size, width,
    TARGET: tl.constexpr, AMC: tl.constexpr, ROWS: tl.constexpr,
    WIDTH: tl.constexpr, WIDTH2: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One position of one level: the loss between all views, and its gradient."""
    s = tl.program_id(0)
    k = tl.program_id(1).to(tl.int64)
    level = 0
    p = s
    steps = length
    for _ in range(num_levels - 1):
        is_later = p >= steps
        p = tl.where(is_later, p - steps, p)
        level = tl.where(is_later, level + 1, level)
        steps = tl.where(is_later, steps // 2, steps)
    overlap = bound(bounds, update, k, num_groups, 2) - bound(bounds, update, k, num_groups, 1)
    valid_steps = overlap >> level
    if p < valid_steps:
        r = tl.arange(0, ROWS)
        place = ((k * num_views + r) * size + s) * width
        z, z2 = _vectors(pyramid, place, r < num_views, width, WIDTH, WIDTH2)
        dots = tl.dot(z, tl.trans(z), input_precision=PRECISION, out_dtype=z.dtype)
        dots = tl.dot(z2, tl.trans(z2), dots, input_precision=PRECISION, out_dtype=z.dtype)
        is_pair = (r[:, None] != r[None, :]) & (r < num_views)[:, None] & (r < num_views)[None, :]
        is_positive = (r // 2)[:, None] == (r // 2)[None, :]
        number = tl.load(update)
        if TARGET:
            wanted = target + (number * num_members + k) * (num_views // 2) * (num_views // 2)
            weight = tl.load(wanted + (r // 2)[:, None] * (num_views // 2) + (r // 2)[None, :], mask=is_pair, other=0.0)
        else:
            weight = tl.where(is_pair & is_positive, 1.0, 0.0).to(z.dtype)
        temperature = tl.load(tau + number * num_members + k)
        half = _half(overlap)
        logits = dots / temperature
        top = tl.max(tl.where(is_pair, logits, LOW), 1)
        grown = tl.where(is_pair, tl.exp(logits - top[:, None]), 0.0)
        sums = tl.where(r < num_views, tl.sum(grown, 1), 1.0)
        all_weights = tl.sum(weight, 1)
        terms = all_weights * (top + tl.log(sums)) - tl.sum(weight * logits, 1)
        factor = half / (valid_steps * num_views)
        loss = tl.sum(tl.where(r < num_views, terms, 0.0), 0) * factor
        slope = ((all_weights / sums)[:, None] * grown - weight) * (factor / temperature)
        if AMC:
            length_of = tl.load(squares + (k * num_views + r) * size + s, mask=r < num_views, other=0.0)
            term, by_cosine, cosine, scale = _angles(dots, length_of, length_of, is_positive, is_pair, tl.load(margin + k))
            factor = half / AMC_DIVISOR * tl.where(valid_steps == 1, tl.load(amc_last + k), tl.load(amc + k))
            loss += tl.sum(tl.sum(term, 1), 0) * factor
            of_itself = tl.sum(by_cosine * cosine, 1) / tl.maximum(length_of, 1e-24)
            slope += (by_cosine * scale - tl.where(r[:, None] == r[None, :], of_itself[:, None], 0.0)) * factor
        both = slope + tl.trans(slope)
        total = tl.dot(both, z, input_precision=PRECISION, out_dtype=z.dtype)
        total2 = tl.dot(both, z2, input_precision=PRECISION, out_dtype=z.dtype)
        _store_vectors(out, place, r < num_views, width, total, total2, WIDTH, WIDTH2)
        tl.store(parts + k * num_parts + s, loss)
    else:
        tl.store(parts + k * num_parts + s, 0.0)


@triton.jit(do_not_specialize=VARIABLE)  # type: ignore[untyped-decorator]
def temporal_kernel(  # type: ignore[no-untyped-def]
    pyramid, squares, out, parts, num_parts, sums, bounds, update, tau, sharpness, amc, margin,
    num_groups, num_members, num_views, length, num_levels, size, width,
    SOFT: tl.constexpr, AMC: tl.constexpr, INSIDE: tl.constexpr, GRADIENT: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr,
    WIDTH: tl.constexpr, WIDTH2: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A block of rows of one level of one series: row 2p + v is step p of view v.

    Without GRADIENT: the loss, and for each row the logsumexp and the sum of weights, which the gradient needs for rows and columns.
    """
    b = tl.program_id(1)
    k = tl.program_id(2).to(tl.int64)
    level = 0
    first = 0
    block = tl.program_id(0)
    steps = length
    for _ in range(num_levels - 1):
        blocks = (2 * steps + ROWS - 1) // ROWS
        is_later = block >= blocks
        block = tl.where(is_later, block - blocks, block)
        first = tl.where(is_later, first + steps, first)
        level = tl.where(is_later, level + 1, level)
        steps = tl.where(is_later, steps // 2, steps)
    overlap = bound(bounds, update, k, num_groups, 2) - bound(bounds, update, k, num_groups, 1)
    valid_steps = overlap >> level
    part = parts + k * num_parts + size + b * tl.num_programs(0) + tl.program_id(0)
    if (valid_steps >= 2) & (block * ROWS < 2 * valid_steps):
        r = block * ROWS + tl.arange(0, ROWS)
        is_row = r < 2 * valid_steps
        place = ((k * num_views + 2 * b + r % 2) * size + first + r // 2) * width
        length_of = tl.load(squares + (k * num_views + 2 * b + r % 2) * size + first + r // 2, mask=is_row, other=0.0)
        temperature = tl.load(tau + tl.load(update) * num_members + k)
        inside = temperature if INSIDE else temperature * 0.0 + 1.0
        half = _half(overlap)
        factor = half / (valid_steps * num_views) * (inside / temperature)
        angular = half / AMC_DIVISOR * tl.load(amc + k)
        of_rows = sums + (k * (num_views // 2) + b) * 4 * size + 2 * first
        kind = pyramid.dtype.element_ty
        top = tl.zeros((ROWS,), kind) + LOW
        grown = tl.zeros((ROWS,), kind)
        attracted = tl.zeros((ROWS,), kind)
        weights = tl.zeros((ROWS,), kind)
        angles = tl.zeros((ROWS,), kind)
        total = tl.zeros((ROWS, WIDTH), kind)
        total2 = tl.zeros((ROWS, WIDTH2), kind)
        if GRADIENT:
            top = tl.load(of_rows + r, mask=is_row, other=0.0)
            weights = tl.load(of_rows + 2 * size + r, mask=is_row, other=0.0)
        for begin in range(0, 2 * valid_steps, COLUMNS):
            q = begin + tl.arange(0, COLUMNS)
            is_column = q < 2 * valid_steps
            where = (k * num_views + 2 * b + q % 2) * size + first + q // 2
            dots = _dots(pyramid, place, is_row, where * width, is_column, width, ROWS, COLUMNS, CHUNK, PRECISION)
            is_pair = (r[:, None] != q[None, :]) & is_row[:, None] & is_column[None, :]
            lag = tl.abs((r // 2)[:, None] - (q // 2)[None, :])
            weight = tl.where(lag == 0, 1.0, 0.0).to(kind)
            if SOFT:
                sharp = tl.load(sharpness + k)
                soft = 2.0 / (1.0 + tl.exp(tl.minimum((lag << level) * sharp, 80.0)))
                weight = tl.where(sharp > 0, tl.where(soft < 1e-6, 0.0, soft), weight)
            weight = tl.where(is_pair, weight, 0.0)
            logits = dots / inside
            if GRADIENT:
                top_of = tl.load(of_rows + q, mask=is_column, other=0.0)
                weights_of = tl.load(of_rows + 2 * size + q, mask=is_column, other=0.0)
                down = weights[:, None] * tl.exp(logits - top[:, None]) + weights_of[None, :] * tl.exp(logits - top_of[None, :])
                slope = tl.where(is_pair, down - 2.0 * weight, 0.0) * (factor / inside)
                if AMC:  # noqa: SIM102 - known when the kernel is compiled; the other when it runs
                    if angular != 0:
                        other_length = tl.load(squares + where, mask=is_column, other=0.0)
                        angle = _angles(dots, length_of, other_length, lag == 0, is_pair, tl.load(margin + k))
                        slope += 2.0 * angular * angle[1] * angle[3]
                        angles += tl.sum(angle[1] * angle[2], 1)
                other, other2 = _vectors(pyramid, where * width, is_column, width, WIDTH, WIDTH2)
                total = tl.dot(slope, other, total, input_precision=PRECISION, out_dtype=kind)
                total2 = tl.dot(slope, other2, total2, input_precision=PRECISION, out_dtype=kind)
            else:
                new = tl.maximum(top, tl.max(tl.where(is_pair, logits, LOW), 1))
                grown = grown * tl.exp(top - new) + tl.sum(tl.where(is_pair, tl.exp(logits - new[:, None]), 0.0), 1)
                top = new
                attracted += tl.sum(weight * logits, 1)
                weights += tl.sum(weight, 1)
                if AMC:  # noqa: SIM102
                    if angular != 0:
                        other_length = tl.load(squares + where, mask=is_column, other=0.0)
                        angle = _angles(dots, length_of, other_length, lag == 0, is_pair, tl.load(margin + k))
                        angles += tl.sum(angle[0], 1)
        if GRADIENT:
            if AMC:
                of_itself = (2.0 * angular * angles / tl.maximum(length_of, 1e-24))[:, None]
                z, z2 = _vectors(pyramid, place, is_row, width, WIDTH, WIDTH2)
                total -= of_itself * z
                total2 -= of_itself * z2
            _store_vectors(out, place, is_row, width, total, total2, WIDTH, WIDTH2)
        else:
            top += tl.log(tl.where(is_row, grown, 1.0))
            tl.store(of_rows + r, top, mask=is_row)
            tl.store(of_rows + 2 * size + r, weights, mask=is_row)
            loss = tl.sum(tl.where(is_row, weights * top - attracted, 0.0), 0) * factor
            if AMC:
                loss += tl.sum(angles, 0) * angular
            tl.store(part, loss)
    else:
        if not GRADIENT:
            tl.store(part, 0.0)
