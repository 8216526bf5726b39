"""Fingerprints: a batch of any shape as rows, and 64 bits for each row and entry.

    leaves_of      the tensors, arrays and lists inside a batch, by name
    BatchRows      a batch as named entries with one value per row
    BatchForm      names and types of the entries, which everything compared is converted to
    fingerprint    the hash of each row and entry

A list is ambiguous: it may hold entries (x and y of a whole batch) or samples (one item per row). It holds entries where all its
parts have one length, which then is the number of rows, and samples where they have the same parts of different lengths.
"""

from __future__ import annotations

import dataclasses
import itertools
import numbers
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from stoker._batch import entries_of, is_tensor
from stoker._types import Array

Cells = Array | list[Any]  # one value per row: an array, or a list where values are strings or arrays of different shapes
WHOLE = "batch"  # the name of a batch that is a single array
MAX_LIST = 16  # a longer list of arrays of one shape is one entry
MAX_DEPTH = 16


def leaves_of(batch: Any) -> dict[str, Any]:
    """All leaves of a batch."""
    leaves: dict[str, Any] = {}
    _collect(batch, "", leaves)
    return leaves


def leaves_of_item(item: Any) -> dict[str, Any]:
    """All leaves of one item of a dataset, whose tuple of numbers is a tuple of entries."""
    if not isinstance(item, tuple) or hasattr(item, "_fields"):
        return leaves_of(item)
    leaves: dict[str, Any] = {}
    for i, part in enumerate(item):
        _collect(part, f"[{i}]", leaves)
    return leaves


def _collect(value: Any, name: str, leaves: dict[str, Any]) -> None:
    parts = _parts(value)
    if parts is None or name.count(".") + name.count("[") > MAX_DEPTH:
        leaves[name or WHOLE] = value
        return
    for key, part in parts:
        _collect(part, key if not name else f"{name}{key}" if key.startswith("[") else f"{name}.{key}", leaves)


def _parts(value: Any) -> list[tuple[str, Any]] | None:
    """The named parts of a container; None for what is a leaf."""
    if isinstance(value, list | tuple):
        if isinstance(value, ListColumn | Stack) or not value or _is_line(value):
            return None
        samples = _samples(value)
        if samples is not None:
            return samples
    entries = entries_of(value)
    if entries is None:
        return None
    is_list = isinstance(value, list | tuple)
    return [(f"[{key}]" if is_list and isinstance(key, int) else str(key), part) for key, part in entries]


def _samples(value: Sequence[Any]) -> list[tuple[str, Any]] | None:
    """A list of samples turned into entries; None where the list holds entries that are batches already."""
    if all(_is_line(part) for part in value):
        ragged = len({_kind(part) for part in value}) == 1 and len({len(part) for part in value}) > 1
        stacked = len(value) > MAX_LIST and len({(_kind(part), len(part)) for part in value}) == 1
        return [("[:]", ListColumn(value))] if ragged else [("[:]", Stack(value))] if stacked else None
    if any(_parts(part) is None for part in value):
        return None
    tables: list[dict[str, Any]] = [{} for _ in value]
    for part, leaves in zip(value, tables, strict=True):
        _collect(part, "", leaves)
    names = list(tables[0])
    if any(list(table) != names for table in tables):
        return None
    lengths = {len(leaf) if _is_line(leaf) else -1 for table in tables for leaf in table.values()}
    if len(lengths) == 1 and -1 not in lengths:
        return None  # every leaf has the same length: that is the number of rows
    return [(name, ListColumn([table[name] for table in tables])) for name in names]


class ListColumn(list[Any]):
    """One entry of a list of samples: a leaf, whatever its values are."""


class Stack(list[Any]):
    """Many arrays of one shape, which torch makes of a list in a sample: one entry, whose rows go across them."""


def _is_line(value: Any) -> bool:
    """Whether values stand in a row here: an array, or a list of strings or numbers."""
    if isinstance(value, list | tuple):
        return bool(value) and all(_is_scalar(part) for part in value)
    return is_array(value) and value.ndim > 0


def _kind(line: Any) -> tuple[Any, ...]:
    """What lines of one entry have in common, besides their length."""
    return (str(line.dtype), *line.shape[1:]) if is_array(line) else (isinstance(line[0], str),)


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, str | bytes | numbers.Number | np.generic)


def is_array(value: Any) -> bool:
    """Whether this is an array of NumPy or a tensor of torch."""
    return isinstance(value, np.ndarray) or is_tensor(value)


def cells_of(leaf: Any) -> Cells | None:
    """The values of a leaf, one per row if it has rows; None for what has none."""
    if isinstance(leaf, ListColumn):
        values = [as_array(value) if is_array(value) else value for value in leaf]
        return values if all(value is not None for value in values) else None
    if isinstance(leaf, Stack):
        stack = [np.asarray(line) if isinstance(line, list | tuple) else as_array(line) for line in leaf]
        return None if any(line is None for line in stack) else np.stack([line for line in stack if line is not None], axis=1)
    if isinstance(leaf, list | tuple):
        array = np.asarray(leaf) if leaf and all(isinstance(v, numbers.Number | np.generic) for v in leaf) else None
        return array if array is not None and array.dtype.kind in "biufc" else list(leaf)
    array = as_array(leaf) if is_array(leaf) else None
    return None if array is None or array.ndim == 0 else array.tolist() if array.dtype.hasobject else array


def as_array(value: Any) -> Array | None:
    """A tensor or array in memory, little-endian, each row in one piece; None for layouts without rows."""
    if is_tensor(value):
        torch = sys.modules["torch"]
        if value.layout is not torch.strided or value.is_nested or value.is_quantized or value.is_meta:
            return None
        value = value.detach().cpu().resolve_conj().resolve_neg()
        if value.dtype is torch.bfloat16:
            value = value.float()
        elif value.dtype.is_floating_point and value.dtype.itemsize == 1:
            value = value.view(torch.uint8)
        value = value.numpy()
    array: Array = np.ascontiguousarray(value) if value.ndim else value
    return array.astype(array.dtype.newbyteorder("<")) if array.dtype.byteorder == ">" else array


# The form of the batches under audit: names and number types of their entries, which everything compared is brought to.


@dataclass(frozen=True, kw_only=True)
class BatchForm:
    """What a batch looks like."""

    names: tuple[str, ...]
    dtypes: dict[str, np.dtype[Any]]
    ndims: dict[str, int]  # axes of the entries that are arrays, rows included

    @classmethod
    def of(cls, rows: BatchRows) -> BatchForm:
        """The form of a (first) batch."""
        arrays = {name: cells for name, cells in rows.entries.items() if isinstance(cells, np.ndarray)}
        dtypes = {name: array.dtype for name, array in arrays.items()}
        return cls(names=tuple(rows.entries), dtypes=dtypes, ndims={name: array.ndim for name, array in arrays.items()})

    def is_batch(self, value: Any) -> bool:
        """Whether this is a batch and not a single item: its arrays have as many axes."""
        ndims = {name: leaf.ndim for name, leaf in leaves_of(value).items() if is_array(leaf)}
        if not set(ndims) & set(self.ndims):
            return bool(ndims) and list(ndims.values()) == list(self.ndims.values())
        return all(ndims[name] == ndim for name, ndim in self.ndims.items() if name in ndims)

    def table(self, rows: BatchRows) -> Hashes:
        """Fingerprints, one row per sample and one column per entry; 0 for entries that the rows lack."""
        return fingerprint(rows, self.names, self.dtypes)

    def lacking(self, rows: BatchRows) -> list[str]:
        """Entries that these rows do not have."""
        return [name for name in self.names if name not in rows.entries]

    def adapt(self, rows: BatchRows) -> BatchRows:
        """Rows from elsewhere with the names of this form; by position where a dataset of tuples feeds batches of dicts."""
        entries = rows.entries
        if not set(self.names) & set(entries) and len(entries) == len(self.names):
            new = dict(zip(entries, self.names, strict=True))
            renamed = {new[name]: cells for name, cells in entries.items()}
            return dataclasses.replace(rows, entries=renamed, packed=frozenset(new[name] for name in rows.packed))
        return rows


# Fingerprints: 64 bits per row and entry, by which the audit recognises a sample wherever it comes.
#
# Equal content has equal fingerprints, whatever batch it came in. Zeros at the end do not count, so that a row padded to the
# longest of its batch is the same row in another batch; rows of one length stay distinct all the same.

Hashes = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def fingerprint(rows: BatchRows, names: Sequence[str], dtypes: dict[str, np.dtype[Any]] | None = None) -> Hashes:
    """One row per sample, one column per name; masked rows are left out, absent entries are 0.

    `dtypes` casts arrays first, so that a reference can be compared with batches of another precision.
    """
    table = np.zeros((rows.num_rows, len(names)), dtype=np.uint64)
    for column, name in enumerate(names):
        cells = rows.entries.get(name)
        if cells is not None:
            table[:, column] = _hash_rows(cells, rows.bounds if name in rows.packed else None, (dtypes or {}).get(name))
    return table if rows.valid is None else table[rows.valid]


def combine(table: Hashes) -> Hashes:
    """The fingerprint of whole samples, from those of their entries."""
    word = np.full(len(table), _GOLDEN, dtype=np.uint64)
    for column in table.T:
        word = (word ^ column) * _FIRST + _GOLDEN
        word ^= word >> np.uint64(29)
        word *= _SECOND
        word ^= word >> np.uint64(32)
    return word


def listed(names: Iterable[str]) -> str:
    """Names in a sentence."""
    quoted = [repr(name) for name in names]
    return ", ".join(quoted[:-1]) + " and " + quoted[-1] if len(quoted) > 1 else quoted[0] if quoted else "nothing"


def seal(array: Array) -> int:
    """The hash of a whole array."""
    return xxhash.xxh3_64_intdigest(array.view(np.uint8).data if array.ndim and array.size else array.tobytes())


def _hash_rows(cells: Cells, bounds: Array | None, dtype: np.dtype[Any] | None) -> Hashes:
    if isinstance(cells, list):
        return np.fromiter((_hash(_bytes_of(value, dtype)) for value in cells), np.uint64, len(cells))
    array = _cast(cells, dtype)
    num_rows = len(array) if bounds is None else len(bounds) - 1
    if not array.nbytes:
        return np.full(num_rows, _hash(b""), dtype=np.uint64)
    lines = np.ascontiguousarray(array).reshape(len(array), -1).view(np.uint8)
    if bounds is None:
        return np.fromiter((_hash(line.tobytes()) for line in lines), np.uint64, num_rows)
    cuts = bounds.tolist()
    return np.fromiter((_hash(lines[a:b].tobytes()) for a, b in itertools.pairwise(cuts)), np.uint64, num_rows)


def _hash(data: bytes) -> int:
    return xxhash.xxh3_64_intdigest(data.rstrip(b"\0"))


def _cast(array: Array, dtype: np.dtype[Any] | None) -> Array:
    if dtype is None or array.dtype == dtype or array.dtype.kind not in "biuf" or dtype.kind not in "biuf":
        return array
    with np.errstate(over="ignore", invalid="ignore"):  # what does not fit is another content, and is found as such
        return array.astype(dtype)


def _bytes_of(value: Any, dtype: np.dtype[Any] | None) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes):
        return value
    is_numbers = isinstance(value, list | tuple) and all(isinstance(part, int | float | np.generic) for part in value)
    if is_numbers or isinstance(value, np.ndarray | np.generic | int | float):
        array = np.asarray(value)
        if array.dtype.kind in "biufcmM":
            return _cast(array, dtype).tobytes()
    return repr(value).encode("utf-8", "surrogatepass")


# Rows: a batch of any shape as named entries with one value per row. The first step of an audit.
#
# Packed batches are cut at their `cu_seqlens`, and rows where `valid` is False are masked. What has no value per row is left out
# by name, never guessed at.

BOUNDS = "cu_seqlens"
VALID = "valid"


@dataclass(frozen=True, kw_only=True)
class BatchRows:
    """A batch as rows."""

    num_rows: int
    entries: dict[str, Cells]
    others: dict[str, str]  # entries without one value per row, and what they are
    originals: dict[str, Any]  # tensors and arrays as they came, by rows or not: what a loader might write over later
    packed: frozenset[str] = frozenset()  # entries whose rows lie end to end, cut at `bounds`
    bounds: Array | None = None
    valid: Array | None = None  # which rows are samples; None for all

    @property
    def num_samples(self) -> int:
        """Rows that are not masked."""
        return self.num_rows if self.valid is None else int(np.count_nonzero(self.valid))


def rows_of(batch: Any) -> BatchRows:
    """Inspect a batch as rows. Tensors on a device are copied to memory."""
    leaves = leaves_of(batch)
    cells = {name: cells_of(leaf) for name, leaf in leaves.items()}
    known = {name: found for name, found in cells.items() if found is not None}
    others = {}
    for name in [name for name in leaves if name not in known]:
        is_value = _is_scalar(leaves[name]) or (is_array(leaves[name]) and leaves[name].ndim == 0)
        others[name] = "one value for the whole batch" if is_value else f"a {type(leaves[name]).__name__}"
    bounds_name, bounds = _bounds({name: found for name, found in known.items() if isinstance(found, np.ndarray)})
    lengths = Counter(len(value) for value in known.values())
    num_rows = len(bounds) - 1 if bounds is not None else lengths.most_common(1)[0][0] if lengths else 0
    entries: dict[str, Cells] = {}
    packed = set()
    for name, found in known.items():
        if name == bounds_name:
            others[name] = "where packed rows begin"
        elif len(found) == num_rows:
            entries[name] = found
        elif bounds is not None and len(found) == bounds[-1]:
            entries[name] = found
            packed.add(name)
        else:
            others[name] = f"{len(found):,} values for {num_rows:,} rows"
    valid = entries.get(VALID)
    if isinstance(valid, np.ndarray) and valid.dtype == np.bool_ and valid.ndim == 1:
        del entries[VALID]
    else:
        valid = None
    originals = {name: leaf for name, leaf in leaves.items() if is_array(leaf)}
    rows = BatchRows(num_rows=num_rows, entries=entries, others=others, originals=originals)
    return dataclasses.replace(rows, packed=frozenset(packed), bounds=bounds, valid=valid)


def rows_of_items(items: Sequence[Any]) -> BatchRows:
    """Inspect the items of a dataset as rows, one each, before they are collated into a batch."""
    columns: dict[str, list[Any]] = {}
    for item in items:
        for name, leaf in leaves_of_item(item).items():
            columns.setdefault(name, []).append(leaf)
    cells = {name: cells_of(ListColumn(column)) for name, column in columns.items() if len(column) == len(items)}
    lacking = {name: len(column) for name, column in columns.items() if cells.get(name) is None}
    others = {name: f"{number:,} values for {len(items):,} items" for name, number in lacking.items()}
    entries = {name: found for name, found in cells.items() if found is not None}
    return BatchRows(num_rows=len(items), entries=entries, others=others, originals={})


def _bounds(arrays: dict[str, Array]) -> tuple[str, Array | None]:
    for name, array in arrays.items():
        if name.rpartition(".")[2] == BOUNDS and array.ndim == 1 and array.dtype.kind in "iu" and len(array):
            rising = array[0] == 0 and bool(np.all(array[1:] >= array[:-1]))
            if rising and any(len(other) == array[-1] for other_name, other in arrays.items() if other_name != name):
                return name, array
    return "", None
