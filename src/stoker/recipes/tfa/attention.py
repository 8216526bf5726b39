"""Attention within windows of a few dozen rows, where all scores of a window fit into registers.

On a GPU one kernel does a window and a head as a whole, forward and backward, straight from the rows of a run: nothing but its
result is written. Elsewhere torch's own attention does it. Axes: s runs, n rows of a run, w windows, t rows of a window, d width.
"""

from __future__ import annotations

import importlib.util

import torch
from torch.nn import functional

from stoker.recipes.tfa import attention_kernel
from stoker.recipes.tfa.windows import to_windows

HAS_TRITON = importlib.util.find_spec("triton") is not None


def attend(qkv_snc: torch.Tensor, *, heads: int, length: int) -> torch.Tensor:
    """Each row of a window attends to all rows of the window: [s * w, t, d] from queries, keys and values of rows [s, n, 3 d]."""
    if qkv_snc.is_cuda and HAS_TRITON:
        mixed: torch.Tensor = attention_kernel.window_attention(qkv_snc, heads, length)
        return mixed
    return attend_plain(qkv_snc, heads=heads, length=length)


def attend_plain(qkv_snc: torch.Tensor, *, heads: int, length: int) -> torch.Tensor:
    """The same by torch alone."""
    windows = to_windows(qkv_snc, length)
    split = windows.reshape(-1, length, 3, heads, windows.shape[2] // 3 // heads).permute(2, 0, 3, 1, 4)
    mixed = functional.scaled_dot_product_attention(split[0], split[1], split[2])
    return mixed.transpose(1, 2).flatten(2)


def attend_last(rows_wtd: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, heads: int) -> torch.Tensor:
    """The last row of each window attends to all of its rows: [w, d].

    `weight` and `bias` are the projection to queries, keys and values. With one query a window, keys and values need not be made:
    a score is the product of the row itself with the query seen through the keys' matrix, and the values' matrix can wait until the
    rows are mixed. A bias of the keys moves all scores of a query alike, so it cancels.
    """
    width = rows_wtd.shape[-1]
    to_query, to_key, to_value = weight.reshape(3, heads, width // heads, width).unbind()
    query_whc = functional.linear(rows_wtd[:, -1], to_query.flatten(0, 1), bias[:width]).reshape(-1, heads, width // heads)
    seen_whd = torch.einsum("whc,hcd->whd", query_whc, to_key) * (width // heads) ** -0.5
    shares_wht = torch.softmax(seen_whd @ rows_wtd.transpose(1, 2), dim=-1)
    mixed_whd = shares_wht @ rows_wtd
    return torch.einsum("whd,hcd->whc", mixed_whd, to_value).flatten(1) + bias[2 * width :]
