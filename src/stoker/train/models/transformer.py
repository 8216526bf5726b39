"""A transformer over the steps of a sample: learned positions, pre-norm blocks, attention by torch's own kernels.

Where only the last step predicts, the last block computes that step alone: the same numbers for about half the work.
Axes: b rows, t steps, f features, d width.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from stoker.errors import OptionError
from stoker.train.models.head import Head
from stoker.train.models.task import Task, at_last


class Transformer(nn.Module):
    """Attention over the steps of a sample."""

    def __init__(
        self,
        task: Task,
        *,
        width: int = 128,
        layers: int = 3,
        heads: int = 8,
        hidden: int | None = None,
        dropout: float = 0.0,
        causal: bool | None = None,
    ) -> None:
        super().__init__()
        if width % heads:
            raise OptionError(f"transformer: heads is {heads}, which does not divide the width {width}.")
        if task.every_step and causal is False:
            raise OptionError("transformer: causal is false, but every step predicts its future, which the others would show it.")
        self._task = task
        self.embed = nn.Linear(task.num_features, width)
        self.positions = nn.Parameter(torch.randn(task.length, width) * 0.02)
        is_causal = task.every_step if causal is None else causal
        hidden = 2 * width if hidden is None else hidden
        self.blocks = nn.ModuleList(Block(width, heads, hidden, dropout, causal=is_causal) for _ in range(layers))
        self.head = Head(task, width)

    def forward(self, x_btf: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """The prediction: [b, s, outputs]."""
        x_btd = self.embed(x_btf) + self.positions[: x_btf.shape[1]]
        if mask is not None:
            # A sample without any step sees its first one: attention to nothing would be no number, even with weight zero.
            mask = torch.cat([torch.ones_like(mask[:, :1]), mask[:, 1:]], dim=1)
        for number, block in enumerate(self.blocks):
            is_last = number == len(self.blocks) - 1
            x_btd = block(x_btd, mask, alone=is_last and not self._task.every_step)
        prediction: torch.Tensor = self.head(x_btd)
        return prediction


class Block(nn.Module):
    """Attention and feed-forward, each behind a norm and added to what came in."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float, *, causal: bool) -> None:
        super().__init__()
        self._heads = heads
        self._causal = causal
        self._dropout = dropout
        self.norm_attention = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.output = nn.Linear(width, width)
        self.norm_forward = nn.LayerNorm(width)
        self.forward_in = nn.Linear(width, hidden)
        self.forward_out = nn.Linear(hidden, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x_btd: torch.Tensor, mask: torch.Tensor | None, *, alone: bool) -> torch.Tensor:
        """The steps after they have seen all (or, causally, those before them): [b, t, d]; with `alone` the last one: [b, 1, d]."""
        normed = self.norm_attention(x_btd)
        key, value = (self._split(part) for part in self.key_value(normed).chunk(2, dim=-1))
        if alone:
            x_btd, normed = at_last(x_btd, mask), at_last(normed, mask)
        query = self._split(self.query(normed))
        # The last step sees all steps anyway, and behind it there is only padding.
        causal = self._causal and not alone
        seen = None if mask is None or causal else mask[:, None, None, :]
        dropout = self._dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=seen, dropout_p=dropout, is_causal=causal)
        x_btd = x_btd + self.drop(self.output(mixed.transpose(1, 2).flatten(2)))
        hidden = functional.gelu(self.forward_in(self.norm_forward(x_btd)))
        seen_all: torch.Tensor = x_btd + self.drop(self.forward_out(hidden))
        return seen_all

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(*x.shape[:2], self._heads, -1).transpose(1, 2)
