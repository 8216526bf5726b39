"""Packed rows: the CLS token and the DOM tokens of all events in one sequence without padding, and attention within events.

    row      0    1    2    3    4    5    6    7    8    9
    event    0    0    0    1    1    1    1    2    2    padding
    token    CLS  DOM  DOM  CLS  DOM  DOM  DOM  CLS  DOM  DOM of no event

A batch may have more DOM rows than its events have DOMs, so that batches have one shape. Rows behind the last event belong to none:
nothing attends to them, and their gradient is zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

EPS = 1.1920928955078125e-07
"""Of every RMS norm, whatever the type: float32's, as in torch since 2.7. With bfloat16's own the model would be another."""


@dataclass(frozen=True, kw_only=True)
class Packing:
    """Where the rows of a batch come from."""

    offsets: Tensor
    """Rows where events begin, and the end of the last: int32 [B + 1]."""
    source: Tensor
    """The DOM of each row; -1 - e for the CLS token of event e: int32 [R]."""

    order: Tensor
    """The events, longest first: int32 [B]. Kernels begin with what takes longest."""

    @property
    def cls(self) -> Tensor:
        """The rows of CLS tokens."""
        return self.offsets[:-1].long()


def make_packing(dom_offsets: Tensor, num_doms: int) -> Packing:
    """Place one CLS token before the DOMs of each event. Waits for nothing.

    Args:
        dom_offsets: Where the DOMs of each event begin, and the end of the last: [B + 1].
        num_doms: Rows of DOM tokens, those behind the last event included.
    """
    device, num_events = dom_offsets.device, dom_offsets.shape[0] - 1
    event = torch.arange(num_events + 1, device=device)
    offsets = dom_offsets + event
    dom = torch.arange(num_doms, device=device)
    place = dom + torch.searchsorted(dom_offsets[1:].contiguous(), dom.to(dom_offsets.dtype), right=True).add_(1).clamp_(
        max=num_events
    )
    source = torch.empty(num_doms + num_events, dtype=torch.int32, device=device)
    source[offsets[:-1].long()] = (-1 - event[:-1]).int()
    source[place] = dom.int()
    order = dom_offsets.diff().argsort(descending=True)
    return Packing(offsets=offsets.int(), source=source, order=order.int())


def norm(x: Tensor) -> Tensor:
    """RMS norm without parameters."""
    return F.rms_norm(x, (x.shape[-1],), eps=EPS)


def attend(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, heads: int) -> Tensor:
    """Attention within events with normed queries and keys: the plain form, for the CPU and for float64.

    Events of similar length are padded to the longest of them, with a mask.

    Args:
        q: Queries: one per row, or one per event (that of its CLS token).
        k: Keys, one per row.
        v: Values, one per row.
        offsets: As in `Packing`.
        heads: Number of heads.

    Returns:
        As many rows as there are queries; zeros for rows of no event.
    """
    num_rows, width = k.shape
    is_all = q.shape[0] == num_rows
    q, k, v = (x.view(x.shape[0], heads, width // heads) for x in (norm_heads(q, heads), norm_heads(k, heads), v))
    begins, lengths = offsets[:-1].long(), offsets.diff().long()
    found, places = [], []
    sizes = (lengths - 1).clamp(min=15).log2().floor()  # up to 16, 32, 64, … rows
    for size in sorted(set(sizes.tolist())):
        events = (sizes == size).nonzero().squeeze(1)
        most = int(lengths[events].max())
        inside = torch.arange(most, device=k.device) < lengths[events, None]
        rows = (begins[events, None] + torch.arange(most, device=k.device)).clamp(max=num_rows - 1)
        keys, values = (x[rows].transpose(1, 2) for x in (k, v))
        queries = q[rows].transpose(1, 2) if is_all else q[events].unsqueeze(2)
        out = F.scaled_dot_product_attention(queries, keys, values, attn_mask=inside[:, None, None, :])
        out = out.transpose(1, 2).flatten(2)
        found.append(out[inside] if is_all else out.squeeze(1))
        places.append(rows[inside] if is_all else events)
    whole = q.new_zeros(q.shape[0], width)
    return whole.index_copy(0, torch.cat(places), torch.cat(found)) if found else whole


def norm_heads(x: Tensor, heads: int) -> Tensor:
    """RMS norm of the channels of each head."""
    return norm(x.view(x.shape[0], heads, -1)).view_as(x)
