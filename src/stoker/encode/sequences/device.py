"""Sequences where the tensors are: the same ones, bit for bit, by operations of torch on any device.

Values are moved as whole numbers of their size, so that no bit of a float changes and every type can be moved. What is left out
or cut off goes to a cell behind the last one: it need not be counted, so the host does not wait for the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from stoker.encode.sequences.options import Options
from stoker.encode.sequences.places import MAX_NARROW
from stoker.encode.sequences.positions import position_names
from stoker.encode.sequences.result import PackedSequences, PaddedSequences
from stoker.encode.sequences.tensors import cast_tensor, check_tensors, read_keys, read_lengths

Tensor = torch.Tensor

_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def pad_tensors(
    table: Mapping[str, Tensor], *, key: str | None, lengths: Any, columns: Sequence[str] | None, contexts: Any, options: Options
) -> PaddedSequences | PackedSequences:
    """What `pad_sequences` does, for tensors of one device."""
    names = check_tensors(table, key, columns)
    values = {name: cast_tensor(name, table[name], options.target, truncate=options.truncates) for name in names}
    types = {name: one.dtype for name, one in values.items()}
    words = {name: one.contiguous().view(_WORDS[one.element_size()]) for name, one in values.items()}
    num_rows, where = len(words[names[0]]), words[names[0]].device
    keys, num_left_out = None, 0
    if key is not None:
        rows, keys = number_rows(*read_keys(key, table[key], contexts))
        rows, order = rows.sort(stable=True)
        words = {name: one[order] for name, one in words.items()}
        counts = torch.bincount(rows + 1, minlength=len(keys) + 1)[1:]
        num_left_out = num_rows - int(counts.sum())
    else:
        counts = read_lengths(lengths, names[0], num_rows, where)
        rows = torch.repeat_interleave(torch.arange(len(counts), device=where), counts, output_size=num_rows)
    cut = counts.clamp(max=options.limit)
    bounds = torch.zeros(len(cut) + 1, dtype=torch.int64, device=where)
    bounds[1:] = (cut + options.end_steps).cumsum(0)
    steps = None if options.is_packed else options.steps(int(cut.max()) if len(cut) else 0)
    begins = bounds[:-1] if steps is None else torch.arange(len(cut), device=where) * steps
    num_cells = int(bounds[-1]) if steps is None else len(cut) * steps
    places = _places(rows, counts, begins, num_left_out, options.limit, num_cells)
    shape = (num_cells,) if steps is None else (len(cut), steps, 1)
    tensors = {name: _put(one, places, num_cells).view(types[name]).view(shape) for name, one in words.items()}
    if options.compat is not None:
        tensors |= positions(cut, begins, steps=steps, max_length=options.limit)
    if steps is not None:
        return PaddedSequences(tensors=tensors, contexts=keys, lengths=cut.int(), num_left_out=num_left_out)
    cu_seqlens = bounds if num_cells > MAX_NARROW else bounds.int()
    return PackedSequences(tensors=tensors, contexts=keys, lengths=cut.int(), num_left_out=num_left_out, cu_seqlens=cu_seqlens)


def number_rows(keys: Tensor, listed: Tensor | None) -> tuple[Tensor, Tensor]:
    """The context of each row, -1 where it is not listed; and the contexts, by default as they first appear."""
    numbers = torch.arange(len(keys), device=keys.device)
    if listed is None:
        distinct, found = torch.unique(keys, return_inverse=True)
        first = torch.full_like(distinct, len(keys), dtype=torch.int64).scatter_reduce_(0, found, numbers, "amin")
        order = first.argsort()
        place = torch.empty_like(order)
        place[order] = numbers[: len(order)]
        return place[found], distinct[order]
    if not len(listed):
        return torch.full_like(numbers, -1), listed
    ordered, order = listed.sort()
    slots = torch.searchsorted(ordered, keys).clamp(max=len(ordered) - 1)
    return torch.where(ordered[slots] == keys, order[slots], -1), listed


def _places(rows: Tensor, counts: Tensor, begins: Tensor, num_left_out: int, limit: int, num_cells: int) -> Tensor:
    """Where each row goes; rows are sorted by their context, those that are left out first."""
    if not len(counts):
        return torch.full_like(rows, num_cells)
    contexts = rows.clamp(min=0)
    firsts = counts.cumsum(0) - counts + num_left_out
    slots = torch.arange(len(rows), device=rows.device) - firsts[contexts]
    return torch.where((rows >= 0) & (slots < limit), begins[contexts] + slots, num_cells)


def _put(values: Tensor, places: Tensor, num_cells: int) -> Tensor:
    target = torch.zeros(num_cells + 1, dtype=values.dtype, device=values.device)
    return target.scatter_(0, places, values)[:num_cells]


def positions(lengths: Tensor, begins: Tensor, *, steps: int | None, max_length: int) -> dict[str, Tensor]:
    """The columns of positions (see `sequences_positions`) of sequences that have one step more than rows."""
    if steps is None:
        contexts = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths + 1)
        step, count = torch.arange(len(contexts), device=lengths.device) - begins[contexts], lengths[contexts]
        numbers = (step, count, count - step)
    else:
        step, count = torch.arange(steps, device=lengths.device)[None, :, None], lengths[:, None, None]
        inside = step <= count
        numbers = (step * inside, count * inside, (count - step) * inside)
    return {
        name: values // divisor % 10 if divisor else values.clone()
        for names, divisor in position_names(max_length)
        for name, values in zip(names, numbers, strict=True)
    }
