"""Places: where each row goes. A counting sort without a sort: rows count themselves in, one pass, in their order.

    context of each row ──► lengths of the sequences ──► where each begins ──► place of each row ──► values at their places

The numbers of the contexts and the places share one array of 4 bytes a row; nothing else is as long as the table.
Kernels move bytes of 1, 2, 4 or 8 and so are compiled at most four times, whatever the types of the columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.kernel import kernel

Array = npt.NDArray[Any]

MAX_NARROW = 2**31 - 1
_NO_STARTS = np.empty(0, dtype=np.int32)


@kernel
def _count(contexts: Array, limit: int, lengths: Array) -> None:
    for i in range(len(contexts)):
        context = contexts[i]
        if context >= 0 and lengths[context] < limit:
            lengths[context] += 1


@kernel
def _place(contexts: Array, limit: int, starts: Array, steps: int, filled: Array, places: Array) -> None:
    """`places` may be `contexts` itself. Sequences begin at `starts`, or, where that is empty, every `steps`."""
    even = len(starts) == 0
    for i in range(len(contexts)):
        context = np.int64(contexts[i])
        place = np.int64(-1)
        if context >= 0 and filled[context] < limit:
            place = (context * steps if even else np.int64(starts[context])) + filled[context]
            filled[context] += 1
        places[i] = place


@kernel
def _put(places: Array, values: Array, target: Array) -> None:
    for i in range(len(places)):
        if places[i] >= 0:
            target[places[i]] = values[i]


def count_rows(contexts: Array, num_contexts: int, limit: int) -> Array:
    """How many rows each context has, at most `limit`: int32."""
    lengths = np.zeros(num_contexts, dtype=np.int32)
    _count(contexts, min(limit, MAX_NARROW), lengths)
    return lengths


def start_steps(lengths: Array, end_steps: int) -> Array:
    """Where each sequence begins if all are end to end, each with `end_steps` behind it; and the end of the last."""
    num_cells = int(lengths.sum(dtype=np.int64)) + end_steps * len(lengths)
    starts = np.zeros(len(lengths) + 1, dtype=np.int32 if num_cells <= MAX_NARROW else np.int64)
    np.add(lengths, end_steps, out=starts[1:])
    np.cumsum(starts, out=starts)
    return starts


def place_rows(contexts: Array, lengths: Array, limit: int, *, starts: Array | None, steps: int, num_cells: int) -> Array:
    """The place of each row. The array of contexts is used up: it becomes the places, unless they do not fit into it."""
    places = contexts if num_cells <= MAX_NARROW else np.empty(len(contexts), dtype=np.int64)
    lengths[:] = 0  # and counted once more on the way: then they need no second array
    begins = _NO_STARTS if starts is None else starts
    _place(contexts, min(limit, MAX_NARROW), begins, steps, lengths, places)
    return places


def put_values(places: Array, values: Array, target: Array) -> None:
    """Write values to their places in a flat target of the same type; bytes are moved as they are."""
    word = np.dtype(f"u{target.dtype.itemsize}")
    plain = values.view(word)
    plain.flags.writeable = False  # kernels are compiled for each kind of array: this makes it one
    _put(places, plain, target.view(word))


@kernel
def _positions(lengths: Array, starts: Array, steps: int, divisor: int, forward: Array, length: Array, backward: Array) -> None:
    even = len(starts) == 0
    for i in range(len(lengths)):
        count = np.int64(lengths[i])
        first = i * steps if even else np.int64(starts[i])
        for step in range(count + 1):
            back = count - step
            forward[first + step] = step if divisor == 0 else step // divisor % 10
            length[first + step] = count if divisor == 0 else count // divisor % 10
            backward[first + step] = back if divisor == 0 else back // divisor % 10


def put_positions(lengths: Array, *, starts: Array | None, steps: int, divisor: int, targets: tuple[Array, Array, Array]) -> None:
    """Number the steps of each sequence and of the one behind it: from its begin, its length, and from its end.

    With a divisor of 1, 10, 100, … it is that decimal digit of each number; with 0 the number itself.
    """
    begins = _NO_STARTS if starts is None else starts
    _positions(lengths, begins, steps, divisor, *targets)
