"""`pad_sequences`: the rows of a table, grouped by a key, become padded or packed tensors in one pass.

    padded = stoker_recipes.tabular.pad_sequences(events, key="user_id", columns=["item", "price"], max_length=100, contexts=user_ids)
    padded["item"]                     # [contexts, steps, 1], zeros after each sequence
    padded.lengths, padded.contexts    # rows and key of each sequence

    packed = stoker_recipes.tabular.pad_sequences(events, key="user_id", layout="packed")
    packed["item"], packed.cu_seqlens  # all sequences end to end, and where each begins
    packed.store()                     # a store: stoker.Feed with stoker.Sequences serves it

The tensors are those of the plain loop that, context by context, selects the rows of its key in their order and copies the first
`max_length` of them. Beyond the result, 4 bytes per row are in memory.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Required, TypedDict, Unpack, get_args, overload

import numpy as np
import torch

from stoker.errors import OptionError, SourceTooLargeError
from stoker.extend import ALIGNMENT, Array, readable_bytes
from stoker_recipes.tabular.columns import TableColumn, read_column
from stoker_recipes.tabular.sequences.columns import (
    Contexts,
    number_blocks,
    number_keys,
    number_type,
    read_table,
)
from stoker_recipes.tabular.sequences.kernels import (
    MAX_NARROW,
    NO_STARTS,
    count_rows,
    place_rows,
    put_positions,
    put_values,
    start_steps,
)

if TYPE_CHECKING:
    from stoker.store import Store

Layout = Literal["padded", "packed"]
Compat = Literal["mostlyai"]
DTYPES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split()


class _Asked(TypedDict, total=False):
    """The arguments of `pad_sequences` that do not decide what it returns."""

    key: Required[str]
    columns: Sequence[str] | None
    max_length: int | None
    contexts: Any
    dtype: str | None
    compat: Compat | None


@overload
def pad_sequences(table: Any, *, layout: Literal["padded"] = ..., **options: Unpack[_Asked]) -> PaddedSequences: ...


@overload
def pad_sequences(table: Any, *, layout: Literal["packed"], **options: Unpack[_Asked]) -> PackedSequences: ...


def pad_sequences(
    table: Any,
    *,
    key: str,
    columns: Sequence[str] | None = None,
    max_length: int | None = None,
    contexts: Any = None,
    layout: Layout = "padded",
    dtype: str | None = None,
    compat: Compat | None = None,
) -> PaddedSequences | PackedSequences:
    """Group the rows of a table by a key and lay them out as tensors: one sequence per key, rows in their order.

    Args:
        table: A pandas or polars frame, an Arrow table, or a mapping of arrays or tensors (those on a GPU are copied to the CPU).
        key: Column with the key of each row.
        columns: Columns of values. Default: all but the key.
        max_length: Cut sequences to their first `max_length` rows; padded tensors have that many steps. Default: the longest.
        contexts: Keys to use, in their order. A key without rows is an empty sequence; rows of other keys are left out and
            counted. Default: all keys, in order of first appearance.
        layout: "padded" (zeros after each sequence) or "packed" (all sequences end to end).
        dtype: Type of all columns; a value that it cannot hold exactly is an error. Default: columns keep theirs, times are int64.
        compat: "mostlyai" gives the tensors of mostlyai-engine: int64 (fractions are dropped), one step of zeros after each
            sequence, the columns of positions, and a sequence without rows for all rows whose key is missing.

    Returns:
        A mapping from column names to tensors on the CPU, with `lengths` and `contexts`.

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
    options = Options(max_length=max_length, layout=layout, dtype=dtype, compat=compat)
    keyed, values = read_table(table, key=key, columns=columns)
    types = [options.target or kind for kind in map(number_type, values)]
    listed = None if contexts is None else read_column("contexts", contexts)
    return _lay_out(number_keys(keyed, listed=listed, keeps_missing=compat is not None), values, types, options)


def _lay_out(
    contexts: Contexts, columns: Sequence[TableColumn], types: Sequence[np.dtype[Any]], options: Options
) -> PaddedSequences | PackedSequences:
    """Count rows, assign cells, write values. `contexts.rows` is overwritten by the cells."""
    lengths = np.zeros(contexts.num_contexts, dtype=np.int32)
    count_rows(contexts.rows, options.limit, lengths)
    steps = options.steps(int(lengths.max(initial=0)))
    starts = start_steps(lengths, options.end_steps) if options.layout == "packed" else None
    num_cells = contexts.num_contexts * steps if starts is None else int(starts[-1])
    shape = (contexts.num_contexts, steps, 1) if starts is None else (num_cells,)
    places = place_rows(contexts.rows, lengths, options.limit, starts=starts, steps=steps, num_cells=num_cells)
    positions = position_names(options.limit) if options.compat is not None else []
    kinds = {column.name: dtype for column, dtype in zip(columns, types, strict=True)}
    flat = zeroed(shape, kinds | {name: np.dtype(np.int64) for names, _ in positions for name in names})
    for column in columns:
        target = flat[column.name]
        for start, values in number_blocks(column, target.dtype, truncate=options.compat is not None):
            put_values(places[start : start + len(values)], values, target)
    for names, divisor in positions:
        put_positions(lengths, NO_STARTS if starts is None else starts, steps, divisor, *(flat[name] for name in names))
    tensors = {name: torch.from_numpy(values).view(shape) for name, values in flat.items()}
    known: dict[str, Any] = {
        "tensors": tensors, "contexts": contexts.keys, "lengths": torch.from_numpy(lengths), "num_left_out": contexts.num_left_out,
    }  # fmt: skip
    return PaddedSequences(**known) if starts is None else PackedSequences(**known, cu_seqlens=torch.from_numpy(starts))


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
    """The key of each sequence: a NumPy array (numbers, times), or an Arrow array (texts)."""
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
        columns = ", ".join(f"{name}: {str(tensor.dtype)[6:]} {list(tensor.shape)}" for name, tensor in self.items())
        left_out = f", {self.num_left_out:,} rows left out" if self.num_left_out else ""
        return f"<{type(self).__name__} of {self.num_contexts:,} contexts{left_out}; {columns}>"


class PaddedSequences(_Sequences):
    """Tensors [contexts, steps, 1], zero after the end of each sequence."""

    @property
    def mask(self) -> torch.Tensor:
        """Which steps are rows of the table: bool [contexts, steps]."""
        steps = next(iter(self.values())).shape[1]
        return torch.arange(steps, dtype=torch.int32) < self.lengths[:, None]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PackedSequences(_Sequences):
    """Tensors [steps], all sequences end to end."""

    cu_seqlens: torch.Tensor
    """Where each sequence begins, and the end of the last: int32 [contexts + 1], int64 from 2**31 steps on."""

    def store(self) -> Store:
        """A store in memory that shares the tensors; `stoker.Feed` with `stoker.Sequences` serves it, `save` writes it to disk.

        Series `i` is the sequence of `contexts[i]`.

        Example:
            >>> packed = pad_sequences({"user": [7, 9, 7], "item": [3, 1, 4]}, key="user", layout="packed")
            >>> packed.store()[0]["item"].tolist()
            [3, 4]
        """
        from stoker.store import store_from_arrays

        return store_from_arrays({name: tensor.numpy() for name, tensor in self.items()}, lengths=np.diff(self.cu_seqlens.numpy()))


# ---- memory of the tensors: filled here and there, and zero elsewhere ----
# The system hands out zeroed memory when it is first touched. In pages of 2 MB that is several times faster than in those of 4 kB,
# and it is most of the time of padding (benchmarks/tabular/bench_sequences.py): so all tensors of a call share one region, for which large
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
