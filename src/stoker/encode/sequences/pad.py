"""Sequences: the rows of a table, grouped by a key, become padded or packed tensors in one pass.

    padded = stoker.encode.pad_sequences(events, key="user_id", columns=["item", "price"], max_length=100, contexts=user_ids)
    padded["item"]                     # [contexts, steps, 1], zeros behind each sequence
    padded.lengths, padded.contexts    # rows of each sequence, and whose it is

    packed = stoker.encode.pad_sequences(events, key="user_id", layout="packed")
    packed["item"], packed.cu_seqlens  # all sequences end to end, and where each begins
    packed.store()                     # a store: stoker.Feed with stoker.Sequences serves it

Law: the tensors are those of the plain loop that, context by context, selects the rows of its key in their order and copies
the first `max_length` of them. Nothing but the result and 4 bytes a row is in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, overload

import numpy as np
import torch

from stoker.encode.sequences.columns import TableColumn, number_blocks, number_type, read_column, read_columns, zeroed
from stoker.encode.sequences.contexts import (
    Contexts,
    count_rows,
    number_contexts,
    place_rows,
    position_names,
    put_positions,
    put_values,
    start_steps,
)
from stoker.encode.sequences.tensors import Compat, Layout, Options, PackedSequences, PaddedSequences, check_grouping, pad_tensors
from stoker.errors import OptionError


@overload
def pad_sequences(
    table: Any,
    *,
    key: str | None = ...,
    lengths: Any = ...,
    columns: Sequence[str] | None = ...,
    max_length: int | None = ...,
    contexts: Any = ...,
    layout: Literal["padded"] = ...,
    dtype: str | None = ...,
    compat: Compat | None = ...,
) -> PaddedSequences: ...


@overload
def pad_sequences(
    table: Any,
    *,
    key: str | None = ...,
    lengths: Any = ...,
    columns: Sequence[str] | None = ...,
    max_length: int | None = ...,
    contexts: Any = ...,
    layout: Literal["packed"],
    dtype: str | None = ...,
    compat: Compat | None = ...,
) -> PackedSequences: ...


def pad_sequences(
    table: Any,
    *,
    key: str | None = None,
    lengths: Any = None,
    columns: Sequence[str] | None = None,
    max_length: int | None = None,
    contexts: Any = None,
    layout: Layout = "padded",
    dtype: str | None = None,
    compat: Compat | None = None,
) -> PaddedSequences | PackedSequences:
    """Group the rows of a table by `key` and lay them out as tensors: one sequence a key, rows in their order.

    The table is a frame of pandas or polars, an Arrow table, or a mapping of arrays; a mapping of tensors on a device is laid
    out there. Instead of a key, `lengths` may say how many rows each sequence has, where they lie end to end already.

    `columns` are those of values (default: all but the key). `max_length` cuts sequences to their first rows; padded tensors
    have that many steps, by default as many as the longest. `contexts` lists the keys to use, in their order: one without rows
    is an empty sequence, and rows of other keys are left out and counted. Without it, sequences stand as their keys first appear.
    `dtype` is the type that all columns become, each value exactly; by default columns keep theirs, and times are int64.

    `compat="mostlyai"` gives the tensors of mostlyai-engine: int64 (floats are cut to whole numbers), one step of zeros behind
    each sequence, the columns of positions, and a sequence without rows for all rows whose key is missing.

    Raises `OptionError` for what cannot be meant, and `BadValueError`, which names column, row and value.
    """
    check_grouping(key, lengths, contexts)
    options = Options(max_length=max_length, layout=layout, dtype=dtype, compat=compat)
    if _is_on_device(table):
        return pad_tensors(table, key=key, lengths=lengths, columns=columns, contexts=contexts, options=options)
    keyed, values = read_columns(table, key=key, columns=columns)
    types = [options.target or kind for kind in map(number_type, values)]
    if keyed is None:
        return _lay_out(_by_lengths(lengths, values[0]), values, types, options)
    listed = None if contexts is None else read_column("contexts", contexts)
    return _lay_out(number_contexts(keyed, listed=listed, keeps_missing=compat is not None), values, types, options)


def _is_on_device(table: Any) -> bool:
    """Whether a table is laid out by torch: where it lies on a device, or holds numbers of a type that NumPy lacks."""
    tensors = [one for one in table.values() if isinstance(one, torch.Tensor)] if isinstance(table, Mapping) else []
    return any(one.device.type != "cpu" or one.dtype == torch.bfloat16 for one in tensors)


def _by_lengths(given: Any, column: TableColumn) -> Contexts:
    """Contexts of rows that lie end to end."""
    listed = read_column("lengths", given)
    number_type(listed)
    blocks = [values for _, values in number_blocks(listed, np.dtype(np.int64))]
    counts = np.concatenate(blocks) if blocks else np.empty(0, dtype=np.int64)
    if (counts < 0).any():
        row = int((counts < 0).argmax())
        raise listed.bad(row, int(counts[row]), "but a sequence has no fewer than 0 rows")
    if counts.sum() != column.num_rows:
        raise OptionError(f"lengths sum up to {counts.sum():,}, but column {column.name!r} has {column.num_rows:,} rows.")
    rows = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    return Contexts(rows=rows, num_contexts=len(counts), keys=None, num_left_out=0)


def _lay_out(
    found: Contexts, columns: Sequence[TableColumn], types: Sequence[np.dtype[Any]], options: Options
) -> PaddedSequences | PackedSequences:
    """Count, place, put. The contexts' rows are used up: their memory becomes the places."""
    num_contexts = found.num_contexts
    lengths = count_rows(found.rows, num_contexts, options.limit)
    steps = options.steps(int(lengths.max(initial=0)))
    starts = start_steps(lengths, options.end_steps) if options.is_packed else None
    num_cells = num_contexts * steps if starts is None else int(starts[-1])
    shape = (num_contexts, steps, 1) if starts is None else (num_cells,)
    places = place_rows(found.rows, lengths, options.limit, starts=starts, steps=steps, num_cells=num_cells)
    positions = position_names(options.limit) if options.compat is not None else []
    flat = zeroed(
        shape,
        {
            **{column.name: dtype for column, dtype in zip(columns, types, strict=True)},
            **{name: np.dtype(np.int64) for names, _ in positions for name in names},
        },
    )
    for column in columns:
        target = flat[column.name]
        for start, values in number_blocks(column, target.dtype, truncate=options.truncates):
            put_values(places[start : start + len(values)], values, target)
    for (forward, length, backward), divisor in positions:
        targets = flat[forward], flat[length], flat[backward]
        put_positions(lengths, starts=starts, steps=steps, divisor=divisor, targets=targets)
    tensors = {name: torch.from_numpy(one).view(shape) for name, one in flat.items()}
    counts = torch.from_numpy(lengths)
    if starts is None:
        return PaddedSequences(tensors=tensors, contexts=found.keys, lengths=counts, num_left_out=found.num_left_out)
    bounds = torch.from_numpy(starts)
    return PackedSequences(tensors=tensors, contexts=found.keys, lengths=counts, num_left_out=found.num_left_out, cu_seqlens=bounds)
