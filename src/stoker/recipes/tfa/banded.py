"""The banded model: one token a label. Each row of a long run attends to itself and the rows before it, up to a window.

A model of windows computes a window of rows for each label; here a row is computed once, whatever the number of labels that look
at it. Rows are cut into chunks of a window, and a chunk attends to itself and the one before it, so work grows with rows times
window. How far back a row lies is learned, for each head, in two ways: as a bias of the scores, and as a fixed share of its value
(a convolution), which finds a signal at one lag long before the scores do. Rows go through a non-linear layer before the first
attention, so that it can already mix sizes where signs would cancel (benchmarks/bench_tfa_quality.py has what both are worth).

Law: a logit depends on its own row and the `reach` - 1 rows before it, and on nothing else. Features are numbers: one that is none
makes none of its whole chunk.
Axes: s runs, n rows, c chunks, w rows of a chunk, v those and the rows of the chunk before, h heads, k numbers of a head, d width.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import cast

import torch
from torch import nn
from torch.nn import functional

from stoker.errors import OptionError
from stoker.recipes.tfa.scaler import Scaler
from stoker.recipes.tfa.stationary import Levels


class Banded(Scaler):
    """Logits [s, n] of runs of rows [s, n, f], one for each row.

    Rows before a run are as if they did not exist, so the first `reach` - 1 logits of a run know less than later ones.
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
        if width % heads:
            raise OptionError(f"banded: heads is {heads}, which does not divide the width {width}.")
        for name, value in (("window", window), ("layers", layers)):
            if value < 1:
                raise OptionError(f"banded: {name} is {value}; expected at least 1.")
        self.window = window
        self.inp = nn.Linear(self.num_features, width)
        self.bend = nn.Linear(width, width)
        self.blocks = nn.ModuleList(Block(width, heads, 2 * width if hidden is None else hidden, window) for _ in range(layers))
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
        """The logit of the last row alone: [s], from the last `reach` rows. A layer computes the rows that the next one needs."""
        rows_snd = self._embed(x_snf[:, -self.reach :])
        for number, block in enumerate(cast(Iterable[Block], self.blocks), 1):
            rows_snd = block.last(rows_snd, num_rows=(len(self.blocks) - number) * (self.window - 1) + 1)
        logits: torch.Tensor = self.head(self.norm(rows_snd[:, -1]))
        return logits[:, 0]

    def _embed(self, x_snf: torch.Tensor) -> torch.Tensor:
        rows_snd: torch.Tensor = self.inp(self.scale(x_snf))
        bent: torch.Tensor = self.bend(functional.gelu(rows_snd))
        return rows_snd + bent


class Block(nn.Module):
    """Banded attention and feed-forward, each behind a norm and added to what came in."""

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
        """All rows, each after it has seen those before it."""
        runs, num_rows, width = rows_snd.shape
        window = self._window
        chunks = -(-num_rows // window)
        qkv = functional.pad(self.qkv(self.norm1(rows_snd)), (0, 0, window, chunks * window - num_rows))  # no row sees the padding
        query, key, value = qkv.reshape(runs, chunks + 1, window, 3, self._heads, -1).permute(3, 0, 1, 4, 2, 5).unbind()
        key, value = (torch.cat([part[:, :-1], part[:, 1:]], dim=-2) for part in (key, value))  # [s, c, h, v, k]
        scores = torch.matmul(query[:, 1:] * query.shape[-1] ** -0.5, key.transpose(-1, -2))
        scores = scores + self._along(self.bias, -math.inf)
        scores[:, 0, :, :, :window] = -math.inf  # before the first chunk there is nothing
        mixed = torch.matmul(torch.softmax(scores, dim=-1) + self._along(self.share, 0.0), value)  # [s, c, h, w, k]
        joined = mixed.transpose(2, 3).reshape(runs, chunks * window, width)[:, :num_rows]
        return self._forward(rows_snd + self.out(joined))

    def _along(self, of_lags: torch.Tensor, outside: float) -> torch.Tensor:
        """Numbers of lags [h, window] for each pair of rows [h, w, v]: column v lies `w + window - v` rows back.

        A row of the result is the one before it, moved on by one; so all are one row with gaps, read on and on. Unlike an index
        it has a gradient that is a plain sum.
        """
        heads, window = of_lags.shape
        gaps = of_lags.new_full((heads, window + 1), outside)
        row = torch.cat([gaps[:, :1], of_lags.flip(1), gaps[:, 1:]], dim=1)
        again = row[:, None].expand(heads, window, 2 * window + 1).reshape(heads, -1)
        return again[:, : 2 * window * window].reshape(heads, window, 2 * window)

    def last(self, rows_snd: torch.Tensor, *, num_rows: int) -> torch.Tensor:
        """The last rows alone, each with all rows that it sees: [s, num_rows, d]."""
        runs, given, width = rows_snd.shape
        num_rows = min(num_rows, given)
        query, key, value = self.qkv(self.norm1(rows_snd)).reshape(runs, given, 3, self._heads, -1).permute(2, 0, 3, 1, 4).unbind()
        row = torch.arange(given, device=rows_snd.device)
        back = row[-num_rows:, None] - row[None, :]
        sees = (back >= 0) & (back < self._window)
        lag = back.clamp(0, self._window - 1)
        scores = torch.matmul(query[:, :, -num_rows:] * query.shape[-1] ** -0.5, key.transpose(-1, -2)) + self.bias[:, lag]
        shares = torch.softmax(scores.masked_fill(~sees, -math.inf), dim=-1) + torch.where(sees, self.share[:, lag], 0.0)
        mixed = torch.matmul(shares, value).transpose(1, 2).reshape(runs, num_rows, width)
        return self._forward(rows_snd[:, -num_rows:] + self.out(mixed))

    def _forward(self, rows: torch.Tensor) -> torch.Tensor:
        """The part that sees one row at a time."""
        added: torch.Tensor = self.linear2(functional.gelu(self.linear1(self.norm2(rows))))
        return rows + added
