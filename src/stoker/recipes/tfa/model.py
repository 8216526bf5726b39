"""The TFA transformer, as its authors have it: the logit of a window's last row, from an encoder over its rows.

It takes raw features (the scaler is part of it) and comes after the windows of a feed. The weights have the names of
`nn.TransformerEncoder`, so that they load both ways, and the numbers are the same ones; but what nobody reads is not computed:

- the last layer has one query a window, and makes neither keys nor values (`attend_last`);
- in a run of rows, what is computed of a row alone (scaler, input, first norm, queries, keys, values) is shared by its windows.

Axes: s runs of rows (of one window each, or of many), n rows of a run, w windows, t rows of a window, f features, d width.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import torch
from torch import nn
from torch.nn import functional

from stoker.errors import OptionError
from stoker.recipes.tfa.attention import attend, attend_last
from stoker.recipes.tfa.scaler import Scaler
from stoker.recipes.tfa.stationary import Levels
from stoker.recipes.tfa.windows import num_windows, to_windows


class Tfa(Scaler):
    """Logits [s, n - length + 1] of runs of rows [s, n, f]: one for each window, so [s, 1] where a run is one window.

    Without `positions` a window is a bag of rows beside its last one, as in the authors' model; with them each place in a window
    has a learned vector, and only the scaler and the input are shared between windows.
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
        if width % heads:
            raise OptionError(f"tfa: heads is {heads}, which does not divide the width {width}.")
        for name, value in (("length", length), ("layers", layers)):
            if value < 1:
                raise OptionError(f"tfa: {name} is {value}; expected at least 1.")
        self.length = length
        self.inp = nn.Linear(len(mean), width)
        layer = nn.TransformerEncoderLayer(width, heads, hidden, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        # It holds the weights and their names; `forward` reads them from there.
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
            raise OptionError(f"tfa: a run has {x_snf.shape[1]} rows; expected at least the {self.length} of a window.")
        rows_snd = self.inp(self.scale(x_snf))
        if self.positions is not None:
            rows_snd = to_windows(rows_snd, self.length) + self.positions
        *layers, last = cast(Iterable[nn.TransformerEncoderLayer], self.encoder.layers)
        for layer in layers:
            rows_snd = self._all_rows(layer, rows_snd)
        logits: torch.Tensor = self.head(self._last_row(last, rows_snd))
        return logits.reshape(-1, num_windows(x_snf.shape[1], self.length))

    def _all_rows(self, layer: nn.TransformerEncoderLayer, rows_snd: torch.Tensor) -> torch.Tensor:
        """A layer for each row of each window: [w, t, d]."""
        own = layer.self_attn
        qkv = functional.linear(layer.norm1(rows_snd), own.in_proj_weight, own.in_proj_bias)
        mixed = own.out_proj(attend(qkv, heads=own.num_heads, length=self.length))
        return _forward(layer, to_windows(rows_snd, self.length) + mixed)

    def _last_row(self, layer: nn.TransformerEncoderLayer, rows_snd: torch.Tensor) -> torch.Tensor:
        """A layer for the last row of each window: [w, d]."""
        own = layer.self_attn
        normed = to_windows(layer.norm1(rows_snd), self.length)
        mixed = attend_last(normed, own.in_proj_weight, own.in_proj_bias, heads=own.num_heads)
        last = rows_snd[:, self.length - 1 :].flatten(0, 1)  # in a run, each row from there on is the last of a window
        return _forward(layer, last + own.out_proj(mixed))


def _forward(layer: nn.TransformerEncoderLayer, rows: torch.Tensor) -> torch.Tensor:
    """The part of a layer that sees one row at a time."""
    added: torch.Tensor = layer.linear2(functional.gelu(layer.linear1(layer.norm2(rows))))
    return rows + added
