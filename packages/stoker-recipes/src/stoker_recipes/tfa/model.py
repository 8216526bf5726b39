"""The models of the recipe, by `build_model`.

    tfa         the authors' transformer over windows of rows, for parity; original sizes: 404,737 weights
    tfa-small   the smaller one that its report proposes: 155,041 weights with 32 rows
    banded      causal attention over a long run of rows, which computes each row once

Each takes raw features: the scaler is part of the model, so that it cannot be forgotten.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

from stoker.errors import OptionError

# ---- stationary features: values in units of price become ratios to the close of the same row ----
#
# 33 of the 55 features of the usual spec are price levels. A market that doubles leaves the range of the scaler, and a model that is
# good on the rows after the training rows is worse on later ones. The ratio uses one row alone, so batches and streams give the same
# bits.

LEVELS = ("IDENT", "SMA", "EMA", "BOLLINGER_UPPER", "BOLLINGER_MIDDLE", "BOLLINGER_LOWER")
"""Operators whose result is a price where their source is one."""
DISTANCES = ("MOMENTUM", "VOLATILITY", "ATR", "MACD_LINE", "MACD_SIGNAL", "MACD_HISTOGRAM", "MARKET_DEPTH")
"""Operators whose result is a difference of prices where their source is one."""
OF_BARS = ("ATR", "MARKET_DEPTH")  # operators that read the bar, whatever their source
PRICES = ("open", "high", "low", "close", "hlc", "hl", "ohlc", "ohlcv", "close_volume", "hlcv")

Array = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, kw_only=True)
class Levels:
    """Columns that are prices, differences of prices, and the close."""

    close: int
    levels: tuple[int, ...]
    distances: tuple[int, ...] = ()


def levels_of(features: Iterable[Mapping[str, Any]]) -> Levels:
    """The levels of the features of a spec (its JSON)."""
    listed = list(features)
    close, levels, distances = None, [], []
    for column, feature in enumerate(listed):
        op, source = str(feature["op"]).upper(), feature.get("source", "close")
        if op == "IDENT" and source == "close" and close is None:
            close = column
        if source in PRICES or op in OF_BARS:
            if op in LEVELS:
                levels.append(column)
            elif op in DISTANCES:
                distances.append(column)
    if close is None:
        raise OptionError(
            f"stationary features are ratios to the close, but none of {len(listed)} features is IDENT of the close.",
            parameter="stationary",
        )
    return Levels(close=close, levels=tuple(levels), distances=tuple(distances))


def ratios(x: Array, levels: Levels) -> Array:
    """Rows [..., f] with prices p as (p - close) / close and differences d as d / close; other columns are unchanged.

    The difference is computed first: it is exact for numbers that are near each other, so the ratio keeps its digits.
    """
    result, close = x.copy(), x[..., levels.close, None]
    lifted, divided = list(levels.levels), list(levels.distances)
    result[..., lifted] = (x[..., lifted] - close) / close
    result[..., divided] = x[..., divided] / close
    return result


# ---- the scaler ----


class ScaledModel(nn.Module):
    """A module that begins with `(x - mean) * inv_std`; with `levels`, mean and std are those of the ratios."""

    mean: torch.Tensor
    inv_std: torch.Tensor
    _lifted: torch.Tensor
    _divided: torch.Tensor

    def __init__(self, *, mean: torch.Tensor, std: torch.Tensor, levels: Levels | None = None) -> None:
        super().__init__()
        if mean.dim() != 1 or mean.shape != std.shape or not len(mean):
            shapes = f"{list(mean.shape)} and {list(std.shape)}"
            raise OptionError(f"mean and std have the shapes {shapes}; expected one number per feature.", parameter="scaler")
        if not bool((std > 0).all()) or not bool(torch.isfinite(mean).all()):
            raise OptionError(
                "std is not above 0 for each feature, or a mean is not finite; clip std at a small number.", parameter="std"
            )
        self.register_buffer("mean", mean.detach().clone())
        self.register_buffer("inv_std", 1 / std.detach())
        self.levels = levels
        # Columns from which the close is subtracted, and which it divides. They follow from the spec, so weights do not hold them.
        lifted, divided = torch.zeros_like(mean), torch.zeros(len(mean), dtype=torch.bool)
        if levels is not None:
            lifted[list(levels.levels)] = 1
            divided[[*levels.levels, *levels.distances]] = True
        self.register_buffer("_lifted", lifted, persistent=False)
        self.register_buffer("_divided", divided, persistent=False)

    def scale(self, x: torch.Tensor) -> torch.Tensor:
        """Features [..., f] in units of their standard deviation."""
        if self.levels is not None:
            close = x[..., self.levels.close, None]
            x = torch.where(self._divided, (x - close * self._lifted) / close, x)
        return (x - self.mean) * self.inv_std


# ---- windows of rows, and their gradient ----
#
# Consecutive windows share all but one row. Axes: s runs of rows, n rows of a run, w windows of a run, t rows of a window, c numbers.


def num_windows(num_rows: int, length: int) -> int:
    """Windows of `length` rows in a run of rows."""
    return num_rows - length + 1


def to_windows(rows_snc: torch.Tensor, length: int) -> torch.Tensor:
    """All windows of each run, one after the other: [s * w, t, c]."""
    if rows_snc.shape[1] == length:
        return rows_snc
    return _Windows.apply(rows_snc, length)  # type: ignore[no-any-return, no-untyped-call]


def to_rows(windows_wtc: torch.Tensor, num_runs: int) -> torch.Tensor:
    """The sum over all windows of each row: [s, n, c], in a fixed order, so that the bits are reproducible."""
    total, length, width = windows_wtc.shape
    windows = total // num_runs
    grid = windows_wtc.reshape(num_runs, windows, length, width)
    wide = torch.float64 if grid.dtype == torch.float64 else torch.float32
    if not grid.is_cuda:
        rows = grid.new_zeros(num_runs, windows + length - 1, width, dtype=wide)
        for place in range(length):
            rows[:, place : place + windows] += grid[:, :, place]
        return rows.to(grid.dtype)
    # The same as a gather, which compiles to one kernel.
    row = torch.arange(windows + length - 1, device=grid.device)[:, None]
    step = torch.arange(length, device=grid.device)[None, :]
    window = row - step
    is_one = (window >= 0) & (window < windows)
    parts = grid[:, window.clamp(0, windows - 1), step.expand_as(window)]
    return torch.where(is_one[None, :, :, None], parts, 0).sum(2, dtype=wide).to(grid.dtype)


class _Windows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows_snc: torch.Tensor, length: int) -> torch.Tensor:
        ctx.num_runs = rows_snc.shape[0]
        windows = rows_snc.unfold(1, length, 1)  # [s, w, c, t], a view
        return windows.transpose(2, 3).reshape(-1, length, rows_snc.shape[2])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return to_rows(gradient, ctx.num_runs), None


# ---- attention within windows of a few dozen rows ----
#
# On a GPU one Triton program computes a window and a head as a whole, in registers, from the rows of a run; elsewhere torch's attention
# does. The backward pass computes scores again, which costs less than reading them. Matmuls are in the type of the rows, sums in
# float32. Triton comes with the CUDA builds of torch; the kernel is a custom op of torch, so that it can be compiled and captured.
# Axes: s runs, n rows of a run, w windows, t rows of a window, d width.

HAS_TRITON = importlib.util.find_spec("triton") is not None
WARPS = 4


@cache
def _kernel() -> Any:
    import triton
    import triton.language as tl

    @triton.jit  # type: ignore[untyped-decorator,unused-ignore]
    def attention(  # type: ignore[no-untyped-def]
        qkv, gradient, out, rows, windows, scale, BACKWARD: tl.constexpr,
        T: tl.constexpr, TILE: tl.constexpr, HEADS: tl.constexpr, SIZE: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
    ):  # fmt: skip
        head = tl.program_id(0)
        window = tl.program_id(1)
        width = HEADS * SIZE
        step = tl.arange(0, TILE)
        place = tl.arange(0, WIDE)
        inside = (step < T)[:, None] & (place < SIZE)[None, :]
        first = (window // windows) * rows + window % windows
        at = (first + step).to(tl.int64)[:, None] * (3 * width) + head * SIZE + place[None, :]
        place_in_window = (window * T + step).to(tl.int64)[:, None]
        q = tl.load(qkv + at, mask=inside, other=0.0)
        k = tl.load(qkv + at + width, mask=inside, other=0.0)
        v = tl.load(qkv + at + 2 * width, mask=inside, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * 1.4426950408889634)
        scores = tl.where((step < T)[None, :], scores, float("-inf"))
        shares = tl.exp2(scores - tl.max(scores, 1)[:, None])
        total = tl.sum(shares, 1)[:, None]
        if BACKWARD:
            d_mixed = tl.load(gradient + place_in_window * width + head * SIZE + place[None, :], mask=inside, other=0.0)
            shares = shares / total
            d_shares = tl.dot(d_mixed, tl.trans(v), input_precision=PRECISION)
            d_v = tl.dot(tl.trans(shares.to(v.dtype)), d_mixed, input_precision=PRECISION)
            d_scores = (shares * (d_shares - tl.sum(shares * d_shares, 1)[:, None]) * scale).to(q.dtype)
            d_q = tl.dot(d_scores, k, input_precision=PRECISION)
            d_k = tl.dot(tl.trans(d_scores), q, input_precision=PRECISION)
            to = out + place_in_window * (3 * width) + head * SIZE + place[None, :]
            tl.store(to, d_q.to(out.dtype.element_ty), mask=inside)
            tl.store(to + width, d_k.to(out.dtype.element_ty), mask=inside)
            tl.store(to + 2 * width, d_v.to(out.dtype.element_ty), mask=inside)
        else:
            mixed = tl.dot(shares.to(v.dtype), v, input_precision=PRECISION) / total
            tl.store(out + place_in_window * width + head * SIZE + place[None, :], mixed.to(out.dtype.element_ty), mask=inside)

    return attention


def _launch(qkv: torch.Tensor, gradient: torch.Tensor | None, heads: int, length: int) -> torch.Tensor:
    qkv = qkv.contiguous()
    out = _empty(qkv, length, parts=1 if gradient is None else 3)
    runs, rows, _ = qkv.shape
    size, windows = qkv.shape[2] // 3 // heads, num_windows(rows, length)
    tile, wide = (max(16, 1 << (number - 1).bit_length()) for number in (length, size))  # sides of a tile: powers of two
    _kernel()[(heads, runs * windows)](
        qkv, qkv if gradient is None else gradient.contiguous(), out, rows, windows, size**-0.5, BACKWARD=gradient is not None,
        T=length, TILE=tile, HEADS=heads, SIZE=size, WIDE=wide, PRECISION="ieee", num_warps=WARPS,
    )  # fmt: skip
    return out


def _empty(qkv: torch.Tensor, length: int, parts: int = 1) -> torch.Tensor:
    runs, rows, width = qkv.shape
    return qkv.new_empty(runs * num_windows(rows, length), length, width // 3 * parts)


@torch.library.custom_op("stoker::window_attention", mutates_args=())
def window_attention(qkv_snc: torch.Tensor, heads: int, length: int) -> torch.Tensor:
    """[s * w, t, d] from queries, keys and values of rows [s, n, 3 d]."""
    return _launch(qkv_snc, None, heads, length)


@window_attention.register_fake
def _(qkv_snc: torch.Tensor, heads: int, length: int) -> torch.Tensor:
    return _empty(qkv_snc, length)


@torch.library.custom_op("stoker::window_attention_backward", mutates_args=())
def window_attention_backward(qkv_snc: torch.Tensor, gradient: torch.Tensor, heads: int, length: int) -> torch.Tensor:
    """The gradient of queries, keys and values of each window: [s * w, t, 3 d]."""
    return _launch(qkv_snc, gradient, heads, length)


@window_attention_backward.register_fake
def _(qkv_snc: torch.Tensor, gradient: torch.Tensor, heads: int, length: int) -> torch.Tensor:
    return _empty(qkv_snc, length, parts=3)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    qkv, ctx.heads, ctx.length = inputs
    ctx.save_for_backward(qkv)


def _backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
    (qkv,) = ctx.saved_tensors
    each = window_attention_backward(qkv, gradient, ctx.heads, ctx.length)
    return each if qkv.shape[1] == ctx.length else to_rows(each, qkv.shape[0]), None, None


window_attention.register_autograd(_backward, setup_context=_keep)


def attend(qkv_snc: torch.Tensor, *, heads: int, length: int) -> torch.Tensor:
    """Attention of each row of a window to all its rows: [s * w, t, d] from queries, keys and values of rows [s, n, 3 d]."""
    if qkv_snc.is_cuda and HAS_TRITON:
        return window_attention(qkv_snc, heads, length)  # type: ignore[no-any-return]
    return attend_plain(qkv_snc, heads=heads, length=length)


def attend_plain(qkv_snc: torch.Tensor, *, heads: int, length: int) -> torch.Tensor:
    """The same in torch."""
    windows = to_windows(qkv_snc, length)
    split = windows.reshape(-1, length, 3, heads, windows.shape[2] // 3 // heads).permute(2, 0, 3, 1, 4)
    mixed = functional.scaled_dot_product_attention(split[0], split[1], split[2])
    return mixed.transpose(1, 2).flatten(2)


def attend_last(rows_wtd: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, heads: int) -> torch.Tensor:
    """Attention of the last row of each window to all its rows: [w, d].

    `weight` and `bias` are the projection to queries, keys and values. With one query per window, keys and values are not computed:
    a score is the product of the row with the query times the key matrix, and the value matrix is applied after the rows are mixed.
    A bias of the keys shifts all scores of a query alike, so it cancels.
    """
    width = rows_wtd.shape[-1]
    to_query, to_key, to_value = weight.reshape(3, heads, width // heads, width).unbind()
    query_whc = functional.linear(rows_wtd[:, -1], to_query.flatten(0, 1), bias[:width]).reshape(-1, heads, width // heads)
    seen_whd = torch.einsum("whc,hcd->whd", query_whc, to_key) * (width // heads) ** -0.5
    shares_wht = torch.softmax(seen_whd @ rows_wtd.transpose(1, 2), dim=-1)
    mixed_whd = shares_wht @ rows_wtd
    return torch.einsum("whd,hcd->whc", mixed_whd, to_value).flatten(1) + bias[2 * width :]


# ---- the banded model ----
#
# A model of windows computes a window of rows per label; here a row is computed once for all labels that depend on it. Rows are cut
# into chunks of a window, and a chunk attends to itself and the one before it, so the work grows with rows times window. Each head
# learns the effect of the lag in two ways: as a bias of the scores, and as a fixed share of the value (a convolution), which finds a
# signal at one lag long before the scores do. Rows pass a non-linear layer before the first attention, so that it can mix magnitudes
# where signs would cancel (benchmarks/tfa/bench_tfa_quality.py measures both).
#
# A logit depends on its own row and the `reach` - 1 rows before it, and on nothing else. A feature that is not finite makes its whole
# chunk NaN.
# Axes: s runs, n rows, c chunks, w rows of a chunk, v those and the rows of the chunk before, h heads, k numbers of a head, d width.


class Banded(ScaledModel):
    """Logits [s, n] of runs of rows [s, n, f], one for each row.

    Rows before a run are not seen, so the first `reach` - 1 logits of a run have less context than later ones.
    """

    def __init__(
        self,
        *,
        mean: torch.Tensor,
        std: torch.Tensor,
        window: int = 48,
        width: int = 64,
        heads: int = 4,
        layers: int = 2,
        hidden: int | None = None,
        levels: Levels | None = None,
    ) -> None:
        super().__init__(mean=mean, std=std, levels=levels)
        _check_sizes("banded", width, heads, window=window, layers=layers)
        self.window = window
        self.inp = nn.Linear(len(mean), width)
        self.bend = nn.Linear(width, width)
        hidden = 2 * width if hidden is None else hidden
        self.blocks = nn.ModuleList(BandedBlock(width, heads, hidden, window) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 1)

    @property
    def reach(self) -> int:
        """How many rows a logit depends on, its own among them."""
        return len(self.blocks) * (self.window - 1) + 1

    def forward(self, x_snf: torch.Tensor) -> torch.Tensor:
        """The logits of all rows."""
        num_rows = x_snf.shape[1]
        rows_snd = self._embed(x_snf)
        for block in self.blocks:
            rows_snd = block(rows_snd)
        logits: torch.Tensor = self.head(self.norm(rows_snd))
        return logits.reshape(-1, num_rows)

    def last(self, x_snf: torch.Tensor) -> torch.Tensor:
        """The logit of the last row: [s], from the last `reach` rows. A layer computes only the rows that the next one needs."""
        rows_snd = self._embed(x_snf[:, -self.reach :])
        for number, block in enumerate(cast(Iterable[BandedBlock], self.blocks), 1):
            rows_snd = block.last(rows_snd, num_rows=(len(self.blocks) - number) * (self.window - 1) + 1)
        logits: torch.Tensor = self.head(self.norm(rows_snd[:, -1]))
        return logits[:, 0]

    def _embed(self, x_snf: torch.Tensor) -> torch.Tensor:
        rows_snd: torch.Tensor = self.inp(self.scale(x_snf))
        bent: torch.Tensor = self.bend(functional.gelu(rows_snd))
        return rows_snd + bent


def _check_sizes(model: str, width: int, heads: int, **counts: int) -> None:
    if width % heads:
        raise OptionError(f"{model}: heads is {heads}, which does not divide the width {width}.", parameter="heads")
    for name, value in counts.items():
        if value < 1:
            raise OptionError(f"{model}: {name} is {value}; expected at least 1.", parameter=name)


class BandedBlock(nn.Module):
    """Banded attention and feed-forward, pre-norm and residual."""

    def __init__(self, width: int, heads: int, hidden: int, window: int) -> None:
        super().__init__()
        self._heads, self._window = heads, window
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.linear1 = nn.Linear(width, hidden)
        self.linear2 = nn.Linear(hidden, width)
        self.bias = nn.Parameter(torch.zeros(heads, window))
        self.share = nn.Parameter(torch.zeros(heads, window))

    def forward(self, rows_snd: torch.Tensor) -> torch.Tensor:
        """All rows [s, n, d]."""
        runs, num_rows, width = rows_snd.shape
        window = self._window
        chunks = -(-num_rows // window)
        qkv = functional.pad(self.qkv(self.norm1(rows_snd)), (0, 0, window, chunks * window - num_rows))  # no row sees the padding
        query, key, value = qkv.reshape(runs, chunks + 1, window, 3, self._heads, -1).permute(3, 0, 1, 4, 2, 5).unbind()
        key, value = (torch.cat([part[:, :-1], part[:, 1:]], dim=-2) for part in (key, value))  # [s, c, h, v, k]
        scores = torch.matmul(query[:, 1:] * query.shape[-1] ** -0.5, key.transpose(-1, -2))
        scores = scores + self._along(self.bias, -math.inf)
        scores[:, 0, :, :, :window] = -math.inf  # there is no chunk before the first
        mixed = torch.matmul(torch.softmax(scores, dim=-1) + self._along(self.share, 0.0), value)  # [s, c, h, w, k]
        joined = mixed.transpose(2, 3).reshape(runs, chunks * window, width)[:, :num_rows]
        return _feed_forward(self, rows_snd + self.out(joined))

    def _along(self, of_lags: torch.Tensor, outside: float) -> torch.Tensor:
        """Numbers per lag [h, window] for each pair of rows [h, w, v]: column v is `w + window - v` rows back.

        A row of the result is the previous one shifted by one, so all are one padded row, read repeatedly. Unlike indexing, its
        gradient is a plain sum.
        """
        heads, window = of_lags.shape
        gaps = of_lags.new_full((heads, window + 1), outside)
        row = torch.cat([gaps[:, :1], of_lags.flip(1), gaps[:, 1:]], dim=1)
        again = row[:, None].expand(heads, window, 2 * window + 1).reshape(heads, -1)
        return again[:, : 2 * window * window].reshape(heads, window, 2 * window)

    def last(self, rows_snd: torch.Tensor, *, num_rows: int) -> torch.Tensor:
        """The last `num_rows` rows: [s, num_rows, d]."""
        runs, length, width = rows_snd.shape
        num_rows = min(num_rows, length)
        query, key, value = self.qkv(self.norm1(rows_snd)).reshape(runs, length, 3, self._heads, -1).permute(2, 0, 3, 1, 4).unbind()
        row = torch.arange(length, device=rows_snd.device)
        back = row[-num_rows:, None] - row[None, :]
        sees = (back >= 0) & (back < self._window)
        lag = back.clamp(0, self._window - 1)
        scores = torch.matmul(query[:, :, -num_rows:] * query.shape[-1] ** -0.5, key.transpose(-1, -2)) + self.bias[:, lag]
        shares = torch.softmax(scores.masked_fill(~sees, -math.inf), dim=-1) + torch.where(sees, self.share[:, lag], 0.0)
        mixed = torch.matmul(shares, value).transpose(1, 2).reshape(runs, num_rows, width)
        return _feed_forward(self, rows_snd[:, -num_rows:] + self.out(mixed))


def _feed_forward(layer: BandedBlock | nn.TransformerEncoderLayer, rows: torch.Tensor) -> torch.Tensor:
    added: torch.Tensor = layer.linear2(functional.gelu(layer.linear1(layer.norm2(rows))))
    return rows + added


# ---- the authors' transformer: the logit of a window's last row, from an encoder over its rows ----
#
# The weights have the names of `nn.TransformerEncoder`, so they load both ways, with the same results. Unused results are not computed:
#
# - the last layer has one query per window, and computes neither keys nor values (`attend_last`);
# - in a run of rows, all that depends on one row (scaler, input, first norm, queries, keys, values) is shared by its windows.
#
# Axes: s runs of rows (of one window each, or of many), n rows of a run, w windows, t rows of a window, f features, d width.


class Tfa(ScaledModel):
    """Logits [s, n - length + 1] of runs of rows [s, n, f]: one for each window, so [s, 1] where a run is one window.

    Without `positions` the order of the rows before the last is not known, as in the authors' model; with them each position in a
    window has a learned vector, and windows share only the scaler and the input.
    """

    def __init__(
        self,
        *,
        mean: torch.Tensor,
        std: torch.Tensor,
        length: int = 48,
        width: int = 128,
        heads: int = 8,
        layers: int = 3,
        hidden: int = 256,
        positions: bool = False,
        levels: Levels | None = None,
    ) -> None:
        super().__init__(mean=mean, std=std, levels=levels)
        _check_sizes("tfa", width, heads, length=length, layers=layers)
        self.length = length
        self.inp = nn.Linear(len(mean), width)
        layer = nn.TransformerEncoderLayer(width, heads, hidden, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        # Holds the weights under their names; `forward` reads them from there.
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 1)
        self.positions = nn.Parameter(torch.randn(length, width) * 0.02) if positions else None

    @property
    def reach(self) -> int:
        """How many rows a logit depends on, its own among them."""
        return self.length

    def forward(self, x_snf: torch.Tensor) -> torch.Tensor:
        """The logits of all windows."""
        if x_snf.shape[1] < self.length:
            raise OptionError(
                f"tfa: a run has {x_snf.shape[1]} rows; expected at least the {self.length} of a window.", parameter="run"
            )
        rows_snd = self.inp(self.scale(x_snf))
        if self.positions is not None:
            rows_snd = to_windows(rows_snd, self.length) + self.positions
        *layers, last = cast(Iterable[nn.TransformerEncoderLayer], self.encoder.layers)
        for layer in layers:
            rows_snd = self._all_rows(layer, rows_snd)
        logits: torch.Tensor = self.head(self._last_row(last, rows_snd))
        return logits.reshape(-1, num_windows(x_snf.shape[1], self.length))

    def _all_rows(self, layer: nn.TransformerEncoderLayer, rows_snd: torch.Tensor) -> torch.Tensor:
        """A layer for all rows of each window: [w, t, d]."""
        attention = layer.self_attn
        qkv = functional.linear(layer.norm1(rows_snd), attention.in_proj_weight, attention.in_proj_bias)
        mixed = attention.out_proj(attend(qkv, heads=attention.num_heads, length=self.length))
        return _feed_forward(layer, to_windows(rows_snd, self.length) + mixed)

    def _last_row(self, layer: nn.TransformerEncoderLayer, rows_snd: torch.Tensor) -> torch.Tensor:
        """A layer for the last row of each window: [w, d]."""
        attention = layer.self_attn
        normed = to_windows(layer.norm1(rows_snd), self.length)
        mixed = attend_last(normed, attention.in_proj_weight, attention.in_proj_bias, heads=attention.num_heads)
        last = rows_snd[:, self.length - 1 :].flatten(0, 1)  # from there on, each row is the last of a window
        return _feed_forward(layer, last + attention.out_proj(mixed))


# ---- models by name ----

Numbers = torch.Tensor | npt.NDArray[np.floating[Any]] | Sequence[float]
TfaModel = Tfa | Banded

SMALL = {"width": 96, "heads": 4, "layers": 2, "hidden": 192}
_SIZES = {"width", "heads", "layers", "hidden"}
KNOWN = {"tfa": _SIZES | {"positions"}, "tfa-small": _SIZES | {"positions"}, "banded": _SIZES}


def build_model(
    name: str, *, num_features: int, mean: Numbers, std: Numbers, length: int, levels: Levels | None = None, **sizes: Any
) -> TfaModel:
    """Build a model of raw features [..., rows, features].

    Args:
        name: "tfa", "tfa-small" or "banded".
        num_features: Features of a row.
        mean: Means of the features over the training rows (of the ratios, with `levels`).
        std: Standard deviations, as `mean`.
        length: Rows of a window; for "banded", rows that a layer looks back.
        levels: Columns that become ratios to the close; None for none.
        **sizes: width, heads, layers, hidden, and for the transformers positions.

    Returns:
        The model, with random weights.

    Raises:
        OptionError: The name or a size is unknown or invalid.

    Example:
        >>> import torch
        >>> model = build_model("banded", num_features=2, mean=[0, 0], std=[1, 1], length=4, width=8, heads=2, layers=1)
        >>> model(torch.zeros(3, 10, 2)).shape
        torch.Size([3, 10])
    """
    if len(mean) != num_features:
        raise OptionError(f"mean has {len(mean)} numbers, but there are {num_features} features.", parameter="mean")
    unknown = sorted(set(sizes) - KNOWN.get(name, set(sizes)))
    if unknown:
        raise OptionError(
            f"model {name} has no {', '.join(unknown)}; it takes {', '.join(sorted(KNOWN[name]))}.", parameter="model"
        )
    options: dict[str, Any] = {
        name: torch.as_tensor(numbers, dtype=torch.float32) for name, numbers in (("mean", mean), ("std", std))
    }
    options["levels"] = levels
    if name == "banded":
        return Banded(**options, window=length, **sizes)
    if name in ("tfa", "tfa-small"):
        return Tfa(**options, length=length, **((SMALL if name == "tfa-small" else {}) | sizes))
    raise OptionError.expected("model", name, "tfa, tfa-small or banded")
