"""`pad_sequences`: the rows of a table, grouped by a key, become padded or packed tensors in one pass.

    padded = stoker.encode.pad_sequences(events, key="user_id", columns=["item", "price"], max_length=100, contexts=user_ids)
    padded["item"]                     # [contexts, steps, 1], zeros after each sequence
    padded.lengths, padded.contexts    # rows and key of each sequence

    packed = stoker.encode.pad_sequences(events, key="user_id", layout="packed")
    packed["item"], packed.cu_seqlens  # all sequences end to end, and where each begins
    packed.store()                     # a store: stoker.Feed with stoker.Sequences serves it

The tensors are those of the plain loop that, context by context, selects the rows of its key in their order and copies the first
`max_length` of them. Beyond the result, 4 bytes per row are in memory. Tensors on a GPU are laid out there by torch operations, with
the same result bit for bit.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args, overload

import numpy as np
import torch

from stoker._kernels import ALIGNMENT
from stoker._text import readable_bytes
from stoker._types import Array
from stoker.encode.sequences.columns import Contexts, TableColumn, number_blocks, number_keys, number_type, read_column, read_table
from stoker.encode.sequences.kernels import MAX_NARROW, NO_STARTS, count_rows, place_rows, put_positions, put_values, start_steps
from stoker.errors import BadValueError, OptionError, SourceTooLargeError

if TYPE_CHECKING:
    from stoker.store import Store

Layout = Literal["padded", "packed"]
Compat = Literal["mostlyai"]
DTYPES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split()


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
    """Group the rows of a table by a key and lay them out as tensors: one sequence per key, rows in their order.

    Args:
        table: A pandas or polars frame, an Arrow table, or a mapping of arrays. A mapping of tensors on a GPU is laid out there.
        key: Column with the key of each row.
        lengths: Rows per sequence, instead of a key, where the rows of each sequence are consecutive.
        columns: Columns of values. Default: all but the key.
        max_length: Cut sequences to their first `max_length` rows; padded tensors have that many steps. Default: the longest.
        contexts: Keys to use, in their order. A key without rows is an empty sequence; rows of other keys are left out and
            counted. Default: all keys, in order of first appearance.
        layout: "padded" (zeros after each sequence) or "packed" (all sequences end to end).
        dtype: Type of all columns; a value that it cannot hold exactly is an error. Default: columns keep theirs, times are int64.
        compat: "mostlyai" gives the tensors of mostlyai-engine: int64 (fractions are dropped), one step of zeros after each
            sequence, the columns of positions, and a sequence without rows for all rows whose key is missing.

    Returns:
        A mapping from column names to tensors, with `lengths` and `contexts`.

    Raises:
        OptionError: An option is invalid.
        BadValueError: A value cannot be read or converted; the error names its column, row and value.
        SourceTooLargeError: The tensors do not fit into memory.

    Example:
        >>> table = {"user": ["ann", "bob", "ann"], "item": [3, 1, 4]}
        >>> padded = pad_sequences(table, key="user")
        >>> padded["item"][:, :, 0].tolist(), padded.lengths.tolist()
        ([[3, 4], [1, 0]], [2, 1])
        >>> packed = pad_sequences(table, key="user", layout="packed")
        >>> packed["item"].tolist(), packed.cu_seqlens.tolist()
        ([3, 4, 1], [0, 2, 3])
    """
    if (key is None) == (lengths is None):
        raise OptionError("pass either key= or lengths=: rows are grouped by one of them.")
    if lengths is not None and contexts is not None:
        raise OptionError("contexts= are keys: they need key=, not lengths=.")
    options = Options(max_length=max_length, layout=layout, dtype=dtype, compat=compat)
    tensors = [one for one in table.values() if isinstance(one, torch.Tensor)] if isinstance(table, Mapping) else []
    if any(one.device.type != "cpu" or one.dtype == torch.bfloat16 for one in tensors):  # on a device, or not a type of NumPy
        return pad_tensors(table, key=key, lengths=lengths, columns=columns, contexts=contexts, options=options)
    keyed, values = read_table(table, key=key, columns=columns)
    types = [options.target or kind for kind in map(number_type, values)]
    if keyed is None:
        return _lay_out(_by_lengths(lengths, values[0]), values, types, options)
    listed = None if contexts is None else read_column("contexts", contexts)
    return _lay_out(number_keys(keyed, listed=listed, keeps_missing=compat is not None), values, types, options)


def _by_lengths(given: Any, column: TableColumn) -> Contexts:
    """The contexts of rows that are grouped already."""
    listed = read_column("lengths", given)
    number_type(listed)
    blocks = [values for _, values in number_blocks(listed, np.dtype(np.int64))]
    counts = np.concatenate(blocks) if blocks else np.empty(0, dtype=np.int64)
    if (counts < 0).any():
        row = int((counts < 0).argmax())
        raise listed.bad(row, int(counts[row]), "expected 0 or more rows")
    if counts.sum() != column.num_rows:
        raise OptionError(f"lengths sum to {counts.sum():,}, but column {column.name!r} has {column.num_rows:,} rows.")
    rows = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    return Contexts(rows=rows, num_contexts=len(counts), keys=None, num_left_out=0)


def _lay_out(
    found: Contexts, columns: Sequence[TableColumn], types: Sequence[np.dtype[Any]], options: Options
) -> PaddedSequences | PackedSequences:
    """Count rows, assign cells, write values. `found.rows` is overwritten by the cells."""
    lengths = np.zeros(found.num_contexts, dtype=np.int32)
    count_rows(found.rows, options.limit, lengths)
    steps = options.steps(int(lengths.max(initial=0)))
    starts = start_steps(lengths, options.end_steps) if options.layout == "packed" else None
    num_cells = found.num_contexts * steps if starts is None else int(starts[-1])
    shape = (found.num_contexts, steps, 1) if starts is None else (num_cells,)
    places = place_rows(found.rows, lengths, options.limit, starts=starts, steps=steps, num_cells=num_cells)
    positions = position_names(options.limit) if options.compat is not None else []
    kinds = {column.name: dtype for column, dtype in zip(columns, types, strict=True)}
    flat = zeroed(shape, kinds | {name: np.dtype(np.int64) for names, _ in positions for name in names})
    for column in columns:
        target = flat[column.name]
        for start, values in number_blocks(column, target.dtype, truncate=options.compat is not None):
            put_values(places[start : start + len(values)], values, target)
    for names, divisor in positions:
        put_positions(lengths, NO_STARTS if starts is None else starts, steps, divisor, *(flat[name] for name in names))
    tensors = {name: torch.from_numpy(one).view(shape) for name, one in flat.items()}
    return _result(tensors, found.keys, torch.from_numpy(lengths), found.num_left_out, starts)


def _result(tensors: Any, keys: Any, lengths: torch.Tensor, num_left_out: int, starts: Any) -> PaddedSequences | PackedSequences:
    """Packed where there are `starts`."""
    if starts is None:
        return PaddedSequences(tensors=tensors, contexts=keys, lengths=lengths, num_left_out=num_left_out)
    bounds = torch.as_tensor(starts)
    return PackedSequences(tensors=tensors, contexts=keys, lengths=lengths, num_left_out=num_left_out, cu_seqlens=bounds)


@dataclass(frozen=True, kw_only=True)
class Options:
    """How sequences are laid out."""

    max_length: int | None
    layout: Layout
    dtype: str | None
    compat: Compat | None

    def __post_init__(self) -> None:
        length = self.max_length
        is_integer = isinstance(length, int | np.integer) and not isinstance(length, bool)
        if length is not None and not (is_integer and 1 <= length < MAX_NARROW):
            raise OptionError(f"max_length is {length!r}; expected an integer from 1 to {MAX_NARROW - 1:,}.")
        if self.layout not in get_args(Layout):
            raise OptionError(f"layout is {self.layout!r}; expected 'padded' or 'packed'.")
        if self.compat not in (None, *get_args(Compat)):
            raise OptionError(f"compat is {self.compat!r}; expected 'mostlyai' or None.")
        if self.compat is not None and (length is None or self.dtype is not None):
            raise OptionError("compat='mostlyai' needs max_length=, and dtype=None: its tensors are int64.")
        if self.dtype is not None and self.dtype not in DTYPES:
            raise OptionError(f"dtype is {self.dtype!r}; expected one of {', '.join(DTYPES)}.")

    @property
    def limit(self) -> int:
        """Most rows of a sequence."""
        return self.max_length or MAX_NARROW

    @property
    def end_steps(self) -> int:
        """Steps of zeros after each sequence."""
        return 1 if self.compat else 0

    @property
    def target(self) -> np.dtype[Any] | None:
        """The type of all columns; None where they keep theirs."""
        name = "int64" if self.compat else self.dtype
        return None if name is None else np.dtype(name)

    def steps(self, longest: int) -> int:
        """Steps of a padded sequence."""
        return (self.max_length or longest) + self.end_steps


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class _Sequences(Mapping[str, torch.Tensor]):
    """A mapping from columns to tensors."""

    tensors: Mapping[str, torch.Tensor]
    contexts: Any
    """The key of each sequence: a NumPy array (numbers, times), an Arrow array (texts), a tensor; None for `lengths=`."""
    lengths: torch.Tensor
    """Rows of each sequence, after cutting: int32."""
    num_left_out: int
    """Rows whose key is not among `contexts`."""

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    @property
    def num_contexts(self) -> int:
        """Number of sequences, including those without rows."""
        return len(self.lengths)

    def __repr__(self) -> str:
        columns = ", ".join(f"{name}: {str(one.dtype)[6:]} {list(one.shape)}" for name, one in self.items())
        left_out = f", {self.num_left_out:,} rows left out" if self.num_left_out else ""
        return f"<{type(self).__name__} of {self.num_contexts:,} contexts{left_out}; {columns}>"


class PaddedSequences(_Sequences):
    """Tensors [contexts, steps, 1], zero after the end of each sequence."""

    @property
    def mask(self) -> torch.Tensor:
        """Which steps are rows of the table: bool [contexts, steps]."""
        steps = next(iter(self.values())).shape[1]
        return torch.arange(steps, dtype=torch.int32, device=self.lengths.device) < self.lengths[:, None]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PackedSequences(_Sequences):
    """Tensors [steps], all sequences end to end."""

    cu_seqlens: torch.Tensor
    """Where each sequence begins, and the end of the last: int32 [contexts + 1], int64 from 2**31 steps on."""

    def store(self, *, key: str | None = "context") -> Store:
        """A store in memory that shares the tensors; `stoker.Feed` with `stoker.Sequences` serves it, `save` writes it to disk.

        Args:
            key: Name of the column with the keys of the contexts; None for a store without it.

        Example:
            >>> packed = pad_sequences({"user": [7, 9, 7], "item": [3, 1, 4]}, key="user", layout="packed")
            >>> packed.store(key="user")[0]["item"].tolist()
            [3, 4]
        """
        from stoker.encode.sequences.store import store_in_memory

        if key is not None and key in self.tensors:
            raise OptionError(f"the store has a column {key!r} of values already. Give the contexts another name with key=.")
        for name, one in self.items():
            if one.dtype == torch.bfloat16:
                raise OptionError(f"column {name!r} is bfloat16, which a store in memory cannot hold. Convert it to float32 first.")
        columns = {name: one.cpu().numpy() for name, one in self.items()}
        offsets = self.cu_seqlens.cpu().numpy().astype(np.int64)
        return store_in_memory(columns, offsets, None if key is None or self.contexts is None else (key, self.contexts))


# ---- memory of the tensors: filled here and there, and zero elsewhere ----
# The system hands out zeroed memory when it is first touched. In pages of 2 MB that is several times faster than in those of 4 kB,
# and it is most of the time of padding (benchmarks/bench_sequences.py): so all tensors of a call share one region, for which large
# pages are requested. It is freed with the last of them.

LARGE_BYTES = 4 << 20
"""Large pages are requested from this size on: below, little of the memory would lie in one."""


def zeroed(shape: Sequence[int], types: Mapping[str, np.dtype[Any]]) -> dict[str, Array]:
    """A flat array of zeros for each column, with as many cells as a tensor of this shape."""
    num_cells = math.prod(shape)
    starts, end = {}, 0
    for name, dtype in types.items():
        starts[name] = end
        end += -(-num_cells * dtype.itemsize // ALIGNMENT) * ALIGNMENT
    memory: Any  # lives as long as an array over it
    try:
        if end < LARGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
            memory = np.zeros(end, dtype=np.uint8)
        else:
            memory = mmap.mmap(-1, end, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            memory.madvise(mmap.MADV_HUGEPAGE)
    except (MemoryError, OSError, OverflowError, ValueError):  # mmap and NumPy report too large a request in several ways
        raise SourceTooLargeError(
            f"{len(types)} columns of shape {list(shape)} take {readable_bytes(end)}, which do not fit into memory. "
            "Lower max_length, pass layout='packed', or write a store with pack_sequences."
        ) from None
    return {name: np.ndarray((num_cells,), dtype, memory, starts[name]) for name, dtype in types.items()}


# ---- positions: the columns that tell a model of mostlyai-engine where in a sequence it is ----
# Its sequences have one step of zeros more than rows: there the model learns to end. Each step has three numbers: its position from
# the start, the length, and its position from the end; with a `max_length` of 100 or more they are split into decimal digits.

PREFIX = "tgt:/__"
DIGITS_FROM = 100
"""From this `max_length` on, numbers are split into digits."""
KINDS = ("sidx", "slen", "ridx")
"""Position from the start, length, position from the end."""


def position_names(max_length: int) -> list[tuple[tuple[str, ...], int]]:
    """Names of the columns in groups of three, and the divisor for their digit (0: the number itself)."""
    digits = {f"E{place}": 10**place for place in reversed(range(len(str(max_length))))}
    suffixes = digits if max_length >= DIGITS_FROM else {"cat": 0}
    return [(tuple(f"{PREFIX}{kind}_{suffix}" for kind in KINDS), divisor) for suffix, divisor in suffixes.items()]


# ---- tensors on a device ----
# Values are moved as integers of their size, so that no bit of a float changes and every type can be moved. Rows that are left out
# or cut off go to a cell after the last one: they need not be counted, so the host does not wait for the device.

Tensor = torch.Tensor
_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def pad_tensors(
    table: Mapping[str, Tensor], *, key: str | None, lengths: Any, columns: Sequence[str] | None, contexts: Any, options: Options
) -> PaddedSequences | PackedSequences:
    """`pad_sequences` for tensors of one device."""
    names = _check_tensors(table, key, columns)
    values = {name: _cast(name, table[name], options.target, truncate=options.compat is not None) for name in names}
    words = {name: one.contiguous().view(_WORDS[one.element_size()]) for name, one in values.items()}
    num_rows, where = len(words[names[0]]), words[names[0]].device
    keys, num_left_out = None, 0
    if key is not None:
        rows, keys = _number_rows(*_read_keys(key, table[key], contexts))
        rows, order = rows.sort(stable=True)
        words = {name: one[order] for name, one in words.items()}
        counts = torch.bincount(rows + 1, minlength=len(keys) + 1)[1:]
        num_left_out = num_rows - int(counts.sum())
    else:
        counts = _read_lengths(lengths, names[0], num_rows, where)
        rows = torch.repeat_interleave(torch.arange(len(counts), device=where), counts, output_size=num_rows)
    cut = counts.clamp(max=options.limit)
    bounds = torch.zeros(len(cut) + 1, dtype=torch.int64, device=where)
    bounds[1:] = (cut + options.end_steps).cumsum(0)
    steps = None if options.layout == "packed" else options.steps(int(cut.max()) if len(cut) else 0)
    begins = bounds[:-1] if steps is None else torch.arange(len(cut), device=where) * steps
    num_cells = int(bounds[-1]) if steps is None else len(cut) * steps
    places = _places(rows, counts, begins, num_left_out, options.limit, num_cells)
    shape = (num_cells,) if steps is None else (len(cut), steps, 1)
    tensors = {}
    for name, one in words.items():
        target = torch.zeros(num_cells + 1, dtype=one.dtype, device=where)
        tensors[name] = target.scatter_(0, places, one)[:num_cells].view(values[name].dtype).view(shape)
    if options.compat is not None:
        tensors |= _positions(cut, begins, steps=steps, max_length=options.limit)
    starts = None if steps is not None else bounds if num_cells > MAX_NARROW else bounds.int()
    return _result(tensors, keys, cut.int(), num_left_out, starts)


def _number_rows(keys: Tensor, listed: Tensor | None) -> tuple[Tensor, Tensor]:
    """The context of each row, -1 where it is not listed; and the contexts, by default in order of first appearance."""
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
    """The cell of each row; rows are sorted by context, those that are left out first."""
    if not len(counts):
        return torch.full_like(rows, num_cells)
    contexts = rows.clamp(min=0)
    firsts = counts.cumsum(0) - counts + num_left_out
    slots = torch.arange(len(rows), device=rows.device) - firsts[contexts]
    return torch.where((rows >= 0) & (slots < limit), begins[contexts] + slots, num_cells)


def _positions(lengths: Tensor, begins: Tensor, *, steps: int | None, max_length: int) -> dict[str, Tensor]:
    """The columns of positions of sequences that have one step more than rows."""
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


def _check_tensors(table: Mapping[str, Tensor], key: str | None, columns: Sequence[str] | None) -> list[str]:
    """The names of the columns of values. All are on one device, of one axis, and equally long."""
    names = [name for name in table if name != key] if columns is None else list(columns)
    used = [*([] if key is None else [key]), *names]
    for name in used:
        if name not in table:
            raise OptionError(f"the table has no column {name!r}; it has {', '.join(table)}.")
    if not names:
        raise OptionError(f"the table has no column to pad besides {key!r}. Add some, or name them with columns=.")
    first = table[used[0]]
    for name in used:
        one = table[name]
        if _where(one) != _where(first):
            raise OptionError(f"column {name!r} is {_where(one)}, but {used[0]!r} is {_where(first)}. Move all to one device.")
        if one.dim() != 1 or one.is_complex():
            raise OptionError(f"column {name!r} is {one.dtype} of shape {tuple(one.shape)}; expected one number per row.")
        if len(one) != len(first):
            raise OptionError(f"column {name!r} has {len(one):,} rows, but {used[0]!r} has {len(first):,}.")
    return names


def _where(column: object) -> str:
    return f"on {column.device}" if isinstance(column, torch.Tensor) else f"a {type(column).__name__}, not a tensor"


def _read_keys(key: str, keys: Tensor, contexts: Any) -> tuple[Tensor, Tensor | None]:
    """Keys and listed contexts as int64."""
    listed = None if contexts is None else torch.as_tensor(contexts, device=keys.device)
    for name, one in ((key, keys), ("contexts", listed)):
        if one is not None and (one.is_floating_point() or one.dtype == torch.uint64 or one.dim() != 1):
            raise OptionError(f"column {name!r} is {one.dtype} of shape {tuple(one.shape)}; expected integer keys on a device.")
    if listed is None:
        return keys.long(), None
    ordered, order = listed.long().sort(stable=True)
    repeats = (ordered[1:] == ordered[:-1]).nonzero()
    if len(repeats):
        first, second = order[int(repeats[0]) : int(repeats[0]) + 2].tolist()
        raise _bad("contexts", second, int(listed[second]), f"as in row {first + 1:,}. List each context once")
    return keys.long(), listed.long()


def _read_lengths(given: Any, name: str, num_rows: int, device: torch.device) -> Tensor:
    """Lengths as int64; together they are all rows."""
    lengths = torch.as_tensor(given, device=device)
    if lengths.dim() != 1 or lengths.is_floating_point():
        raise OptionError(f"lengths is {lengths.dtype} of shape {tuple(lengths.shape)}; expected integers, one per sequence.")
    lengths = lengths.long()
    if len(lengths) and int(lengths.min()) < 0:
        row = int(lengths.argmin())
        raise _bad("lengths", row, int(lengths[row]), "expected 0 or more rows")
    if int(lengths.sum()) != num_rows:
        raise OptionError(f"lengths sum to {int(lengths.sum()):,}, but column {name!r} has {num_rows:,} rows.")
    return lengths


def _cast(name: str, values: Tensor, dtype: np.dtype[Any] | None, *, truncate: bool) -> Tensor:
    """Values in another type, each exactly; `truncate` drops fractions."""
    target: torch.dtype = values.dtype if dtype is None else getattr(torch, dtype.name)
    if values.dtype == target:
        return values
    if torch.uint64 in (values.dtype, target):
        raise OptionError(f"column {name!r} cannot be converted from {values.dtype} to {target} on a device. Convert it before.")
    if values.dtype in (torch.uint16, torch.uint32):
        values = values.long()
    result = values.to(target)
    bad = _differs(values, result, truncate)
    if bool(bad.any()):
        row = int(bad.int().argmax())
        raise _bad(name, row, values[row].item(), f"which {str(target)[6:]} cannot hold. Choose another dtype, or fix the row")
    return result


def _differs(values: Tensor, result: Tensor, truncate: bool) -> Tensor:
    """Which numbers differ after a cast; floats may round to narrower floats, but not overflow."""
    if result.dtype == torch.bool:
        return (values != 0) & (values != 1)
    if values.is_floating_point() and result.is_floating_point():
        return values.isfinite() & ~result.isfinite()
    if values.is_floating_point():
        whole = values.double().trunc()
        outside = ~_fits(whole, result.dtype)
        return outside if truncate else outside | (whole != values)
    if result.is_floating_point():
        return ~_fits(result.double(), torch.int64) | (result.double().long() != values)
    whole_result = result.long()
    return whole_result != values.long()


def _fits(whole: Tensor, dtype: torch.dtype) -> Tensor:
    bounds = torch.iinfo(dtype)
    return (whole >= float(bounds.min)) & (whole < float(bounds.max) + (0.0 if bounds.bits > 53 else 1.0))


def _bad(name: str, row: int, value: object, reason: str) -> BadValueError:
    return BadValueError(f"column {name!r} holds {value!r} ({type(value).__name__}) in row {row + 1:,}, {reason}.")
