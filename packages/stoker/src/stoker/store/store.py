"""`Store`: immutable columns of ragged series, mapped from disk or held in memory behind one interface.

`map_store` reads no values, so it takes the same time for ten series and for 48 million.
Columns and series are read-only views; nothing is copied until the caller does.
"""

from __future__ import annotations

import difflib
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, overload

import numpy as np
import numpy.typing as npt

from stoker import _disk
from stoker._disk import check_path
from stoker._text import html_table
from stoker._types import Array
from stoker.errors import OptionError, StoreDamagedError
from stoker.store.manifest import Manifest, SourceEntry, read_manifest
from stoker.store.shards import Column, Texts, map_shards, pieces

MOST_SUGGESTED = 10_000  # names that one which is not there is compared with

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from stoker.store.pack.options import Time


class Series(dict[str, Any]):
    """One series of a store: a read-only mapping from column names to read-only arrays (or to single values, per series).

    Values are looked up when they are asked for. It is a dict as well, because pandas takes columns from nothing else:
    `pd.DataFrame(store[0])`. `to_pandas` gives categories as words and times as times.

    Example:
        >>> series = Store.from_arrays(x=[[1.0, 2.0], [3.0]], name=["a", "b"])[0]
        >>> series.num_steps, series["x"].tolist(), series["name"]
        (2, [1.0, 2.0], 'a')
    """

    __slots__ = ("_start", "_stop", "_store", "index")

    def __init__(self, store: Store, index: int, start: int, stop: int) -> None:
        super().__init__()
        self._store = store
        self._start = start
        self._stop = stop
        self.index = index

    @property
    def num_steps(self) -> int:
        """Length of the series."""
        return self._stop - self._start

    def __getitem__(self, name: str) -> Any:
        values = self._store._step_values.get(name)
        if values is not None:
            return values[self._start : self._stop]
        return self._store._series_value(name, self.index)

    def __iter__(self) -> Iterator[str]:
        return iter(self._store.schema)

    def __len__(self) -> int:
        return len(self._store.schema)

    def __setitem__(self, name: str, value: Any) -> NoReturn:
        raise TypeError(f"series {self.index} of {self._store.name} is read-only; dict(series) is a copy that can be changed.")

    __delitem__ = update = setdefault = pop = popitem = clear = __ior__ = __setitem__  # type: ignore[assignment]

    # The methods of a mapping, over what is looked up: those of a dict see only what was put into it.
    __contains__ = Mapping.__contains__
    __eq__ = Mapping.__eq__
    __hash__ = None
    keys = Mapping.keys  # type: ignore[assignment]
    items = Mapping.items  # type: ignore[assignment]
    values = Mapping.values  # type: ignore[assignment]
    get = Mapping.get  # type: ignore[assignment]

    def copy(self) -> dict[str, Any]:
        """Return a plain dict of all columns."""
        return {name: self[name] for name in self}

    def to_pandas(self) -> pd.DataFrame:
        """Return a DataFrame with a row per step; categories are words, and times are times."""
        from stoker.store.arrow import steps_to_arrow

        return steps_to_arrow(self._store, self.index, self.index + 1).to_pandas()

    def __repr__(self) -> str:
        return f"<series {self.index} of {self._store.name}: {self.num_steps:,} steps of {', '.join(self._store.schema)}>"


class Store:
    """Columns of ragged series. `stoker.pack` and `stoker.open` give one on disk, `from_arrays` one in memory.

    Example:
        >>> store = Store.from_arrays(close=[[1.0, 2.0], [3.0]], symbol=["A", "B"])
        >>> len(store), store.num_steps, store.lengths.tolist()
        (2, 3, [2, 1])
        >>> store[1]["close"].tolist()
        [3.0]
    """

    is_remote = False
    """Whether values are fetched from object storage when they are read."""

    def __init__(
        self,
        columns: Mapping[str, Column],
        values: Mapping[str, Array],
        *,
        num_series: int,
        length: int | None,
        offsets: Array | None,
        name: str,
        manifest: Manifest | None = None,
        path: Path | None = None,
    ) -> None:
        self.schema: Mapping[str, Column] = dict(columns)
        self.name = name
        self.path = path
        self.manifest = manifest
        self._num_series = num_series
        self._length = length
        self._offsets = offsets
        self._values = dict(values)
        self._step_values = {n: v for n, v in values.items() if columns[n].level == "step"}
        self._num_steps = length * num_series if length is not None else int(offsets[-1]) if offsets is not None else 0

    @classmethod
    def from_arrays(
        cls, *, lengths: Sequence[int] | Array | None = None, **columns: npt.ArrayLike | Sequence[npt.ArrayLike]
    ) -> Store:
        """Build a store in memory.

        Args:
            lengths: the number of steps of each series, where columns hold the steps of all series end to end.
            columns: a list of arrays (one per series), an array [series, steps] or [series, steps, width], one value per series,
                or a list of strings.

        Raises:
            OptionError: a column has a type or shape that does not fit the others.

        Example:
            >>> Store.from_arrays(x=[0.5, 1.5, 2.5], lengths=[2, 1])[0]["x"].tolist()
            [0.5, 1.5]
        """
        return store_from_arrays(columns, lengths=lengths)

    @classmethod
    def from_frame(
        cls,
        frame: object,
        *,
        series: str | None = None,
        time: str | Time | None = None,
        sort: bool = False,
        wide: bool = False,
    ) -> Store:
        """Build a store in memory from a DataFrame or another table with a row per step: the one that `stoker.pack` would write.

        Args:
            frame: A frame of pandas or Polars, an Arrow table, or a mapping of arrays.
            series: The column whose values group rows into series. Without it all rows are one series.
            time: The column that must increase within a series, or a `Time` with rules for it.
            sort: Sort each series by `time` instead of refusing unsorted or equal times.
            wide: Make each numeric column a series of its own.

        Raises:
            OptionError: An argument is invalid.
            SourceError: The table does not fit the arguments. The message names the row.

        Example:
            >>> store = Store.from_frame({"symbol": ["B", "A", "A"], "close": [2.5, 1.0, 1.5]}, series="symbol")
            >>> store["A"]["close"].tolist(), store.path
            ([1.0, 1.5], None)
        """
        import stoker  # what a user would call: `pack` is above this module

        if isinstance(frame, str | os.PathLike):
            what = f"{frame} is a path; from_frame takes a table in memory. Pack files with stoker.pack."
            raise OptionError(what, parameter="frame")
        with _disk.temporary_folder() as folder:
            packed = stoker.pack(frame, folder / "frame.stoker", series=series, time=time, sort=sort, wide=wide)
            return packed._copied()

    def _copied(self) -> Store:
        """The same store in memory, without its files."""
        schema = {
            name: column
            if column.texts is None
            else replace(column, texts=Texts(_owned(column.texts.utf8), _owned(column.texts.offsets)))
            for name, column in self.schema.items()
        }
        return Store(
            schema,
            {name: _owned(self.column(name)) for name, column in schema.items() if column.dtype is not None},
            num_series=len(self),
            length=self._length,
            offsets=None if self._offsets is None else _owned(self._offsets),
            name="<memory>",
            manifest=self.manifest,
        )

    def __len__(self) -> int:
        return self._num_series

    @overload
    def __getitem__(self, index: int | str) -> Series: ...
    @overload
    def __getitem__(self, index: slice) -> list[Series]: ...
    def __getitem__(self, index: int | str | slice) -> Series | list[Series]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._num_series))]
        if isinstance(index, str):
            return self[self.find(index)]
        if isinstance(index, bool) or not isinstance(index, int | np.integer):
            raise TypeError(
                f"{self.name}[{index!r}] is not a series; expected a number like store[0], a name like store['A'], or a slice. "
                "Columns are store.column(name)."
            )
        i = index if index >= 0 else index + self._num_series
        if not 0 <= i < self._num_series:
            raise IndexError(f"{self.name} has {self._num_series:,} series; there is no series {index:,}.")
        if self._offsets is None:
            length = self._length or 0
            return Series(self, i, i * length, (i + 1) * length)
        start, stop = self._offsets.item(i), self._offsets.item(i + 1)
        if not 0 <= start <= stop <= self._num_steps:
            raise StoreDamagedError(
                f"{self.name}: the offsets of series {i:,} are {start:,} and {stop:,} of {self._num_steps:,}. "
                "Run `stoker inspect --verify`."
            )
        return Series(self, i, start, stop)

    def __iter__(self) -> Iterator[Series]:
        return (self[i] for i in range(self._num_series))

    @property
    def num_steps(self) -> int:
        """Total number of steps of all series."""
        return self._num_steps

    @property
    def lengths(self) -> Array:
        """Number of steps of each series, int64. Computed on each call."""
        if self._offsets is None:
            return np.full(self._num_series, self._length or 0, dtype=np.int64)
        return np.diff(self._offsets)

    @property
    def offsets(self) -> Array:
        """Where each series begins in a flat column, and the end of the last: `len(store) + 1` numbers, int64."""
        if self._offsets is None:
            return np.arange(self._num_series + 1, dtype=np.int64) * (self._length or 0)
        return self._offsets

    @property
    def uniform_length(self) -> int | None:
        """The length of all series, where they have the same by construction; else None."""
        return self._length

    @property
    def key(self) -> str | None:
        """The column that names the series."""
        return self.manifest.key if self.manifest else None

    @property
    def time(self) -> str | None:
        """The column that orders the steps."""
        return self.manifest.time if self.manifest else None

    @property
    def freq(self) -> str | None:
        """The declared distance between two steps, like "1h" (see `pack(freq=)`); None without one."""
        return self.manifest.freq if self.manifest is not None else None

    @property
    def digest(self) -> str | None:
        """128 bits that change with any bit of data or schema; None in memory."""
        return self.manifest.digest if self.manifest else None

    @property
    def num_bytes(self) -> int:
        """Size of all values, offsets and texts."""
        texts = sum(c.texts.utf8.nbytes + c.texts.offsets.nbytes for c in self.schema.values() if c.texts is not None)
        offsets = 0 if self._offsets is None else self._offsets.nbytes
        return sum(v.nbytes for v in self._values.values()) + texts + offsets

    def column(self, name: str) -> Array:
        """The whole flat column: one number (or row) per step, or per series."""
        if name not in self._values:
            self._unknown(name)
        return self._values[name]

    def mapped(self, name: str) -> Array:
        """The column for readers that ask for its blocks themselves, as feeds do; on disk and in memory just the column."""
        return self.column(name)

    def rows(self, name: str, start: int, stop: int) -> Array:
        """Rows `start` to `stop` of a flat column; of a remote store a copy, for which only their blocks are fetched."""
        return self.column(name)[start:stop]

    def texts(self, name: str) -> Texts:
        """The categories of a category column, or the strings of a text column."""
        column = self.schema.get(name) or self._unknown(name)
        if column.texts is None:
            raise OptionError(f"column {name!r} of {self.name} holds {column.label}, not strings or categories.", column=name)
        return column.texts

    def find(self, key: str | int) -> int:
        """The index of the (first) series with this key.

        Raises:
            OptionError: the store has no key column.
            KeyError: no series has this key.
        """
        if self.key is None:
            raise OptionError(f"{self.name} was packed without series=, so its series have numbers, not keys.", parameter="series")
        column = self.schema[self.key]
        keys: Sequence[Any] | Array = column.texts if column.texts is not None else self._values[self.key]
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if keys[middle] < key else (low, middle)
        if low < len(self) and keys[low] == key:
            return low
        # Keys of a column are sorted; names of files (and their columns) are in the order of the files.
        for i, name in enumerate(keys if column.texts is not None else ()):
            if name == key:
                return i
        return self._find_in_files(key) if column.texts is not None and self.manifest else self._not_found(key)

    def _find_in_files(self, key: str | int) -> int:
        """Series of `wide=True` are named file:column if there are several files: find one by its column alone, and the reverse."""
        names = self.texts(self.key or "")
        files = [source.name for source in self.manifest.sources] if self.manifest else []
        for file in files if len(files) == 1 else ():
            if isinstance(key, str) and key.startswith(f"{file}:"):
                return self.find(key.removeprefix(f"{file}:"))
        matches = [i for i, name in enumerate(names) if name.endswith(f":{key}") and name.removesuffix(f":{key}") in files]
        if len(matches) > 1:
            shown = ", ".join(repr(names[i]) for i in matches[:3])
            raise KeyError(f"{self.name} has {len(matches):,} series named {key!r}: {shown}. Give one of these names.")
        return matches[0] if matches else self._not_found(key)

    def _not_found(self, key: str | int) -> NoReturn:
        column = self.schema[self.key or ""]
        keys: Iterable[Any] = column.texts if column.texts is not None else self._values[column.name]
        names = [str(name) for name in itertools.islice(keys, MOST_SUGGESTED)]
        near = difflib.get_close_matches(str(key), names, n=1)
        known = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(names[:3])}{', …' if len(self) > 3 else ''}."
        raise KeyError(f"{self.name} has no series with {self.key} {key!r}; {known}")

    def where(self, expression: str) -> Array:
        """The numbers of the series that fulfil a condition, int64 and rising. `stoker.split.where` makes a subset of them.

        Args:
            expression: a condition over columns with one value per series, and `num_steps`, the length of the series.

        Raises:
            OptionError: the condition is invalid, or uses a column that series do not have.

        Example:
            >>> store = Store.from_arrays(x=[[1.0, 2.0], [3.0], [4.0]], country=["DE", "DE", "AT"])
            >>> store.where("country == 'DE' and num_steps > 1").tolist()
            [0]
        """
        from stoker.store.conditions import find_series

        return find_series(expression, self)

    def save(self, path: str | os.PathLike[str], *, note: str = "arrays in memory", replace: bool = False) -> Store:
        """Write the store to a folder, all or nothing, and open it there.

        Args:
            path: the folder of the new store.
            note: where the values are from, for the manifest.
            replace: replace a store that is there already, in one step at the end.

        Raises:
            StoreExistsError: there is a store already, and `replace` is False.
            DiskError: the disk refused an operation; the folder is as before.
        """
        from stoker.store.writer import save_store

        folder = check_path(path)
        save_store(self, folder, note=note, replace=replace)
        return map_store(folder, read_manifest(folder))

    def field(self, name: str) -> Column:
        """Return what a column is.

        Raises:
            OptionError: There is no such column.

        Example:
            >>> Store.from_arrays(x=[[1.0, 2.0]]).field("x").level
            'step'
        """
        if name not in self.schema:
            raise OptionError(f"{self.name} has no column {name!r}; it has {', '.join(self.schema)}.", column=name)
        return self.schema[name]

    def to_arrow(self) -> pa.Table:
        """An Arrow table with one row per series: list columns for steps, plain ones for series. Numbers are shared, not copied."""
        from stoker.store.arrow import store_to_arrow

        return store_to_arrow(self)

    def to_pandas(self) -> pd.DataFrame:
        """Return a DataFrame with a row per step, in the order of the store, which `from_frame` turns back into a store.

        Values per series are repeated. Categories are words, and times are times. A series without steps has no row. Without a key,
        the column `series` has the number of the series.

        Example:
            >>> store = Store.from_frame({"symbol": ["A", "B", "A"], "close": [1.0, 2.5, 1.5]}, series="symbol")
            >>> store.to_pandas().values.tolist()
            [['A', 1.0], ['A', 1.5], ['B', 2.5]]
        """
        from stoker.store.arrow import steps_to_arrow

        return steps_to_arrow(self).to_pandas()

    def to_polars(self) -> pl.DataFrame:
        """Return the rows of `to_pandas` as a frame of Polars.

        Raises:
            OptionError: Polars is not installed.
        """
        from stoker.store.arrow import steps_to_arrow

        try:
            import polars as pl
        except ImportError:
            raise OptionError("to_polars needs Polars: pip install polars.") from None
        frame = pl.from_arrow(steps_to_arrow(self))
        assert isinstance(frame, pl.DataFrame)
        return frame

    def _pieces(self, name: str, max_bytes: int) -> Iterator[Array]:
        """A column from its first row to its last, in pieces, so that no more of it has to be in memory at once."""
        return pieces(self.column(name), max_bytes)

    def _origins(self) -> tuple[list[str], list[SourceEntry] | None]:
        """Notes and sources, for a copy of the store."""
        return (self.manifest.notes, self.manifest.sources) if self.manifest else ([], None)

    def _series_value(self, name: str, index: int) -> Any:
        values = self._values.get(name)
        if values is not None:
            return values[index]
        column = self.schema.get(name) or self._unknown(name)
        return column.texts[index] if column.texts is not None else None

    def _unknown(self, name: str) -> Any:
        raise KeyError(f"{self.name} has no column {name!r}; it has {', '.join(self.schema)}.")

    def __repr__(self) -> str:
        columns = ", ".join(f"{c.name}: {c.label}" for c in self.schema.values())
        return f"<store {self.name}: {self._num_series:,} series, {self._num_steps:,} steps, {columns}>"

    def _repr_html_(self) -> str:
        rows = [("column", "type", "per"), *((value.name, value.label, value.level) for value in self.schema.values())]
        return html_table(f"store {self.name}: {self._num_series:,} series, {self._num_steps:,} steps", rows)


def store_from_arrays(columns: Mapping[str, Any], *, lengths: Sequence[int] | Array | None = None) -> Store:
    """Build a store in memory that shares the given arrays where they are contiguous.

    Args:
        columns: arrays by name: lists of arrays, arrays of one to three axes, or lists of strings.
        lengths: the number of steps of each series, where arrays hold the steps of all series end to end.

    Raises:
        OptionError: a column has a type or shape that does not fit the others.

    Example:
        >>> store = store_from_arrays({"x": [[1.0, 2.0], [3.0]], "name": ["a", "b"]})
        >>> store[1]["x"].tolist(), store[1]["name"]
        ([3.0], 'b')
    """
    from stoker.store.in_memory import columns_from_arrays

    schema, values, offsets = columns_from_arrays(columns, lengths)
    counts = np.diff(offsets)
    uniform = int(counts[0]) if len(counts) and (counts == counts[0]).all() else None
    return Store(
        schema, values, num_series=len(counts), length=uniform, offsets=offsets if uniform is None else None, name="<memory>"
    )


def _owned(values: Array) -> Array:
    """A read-only copy."""
    copy = np.array(values)
    copy.flags.writeable = False
    return copy


class ColumnsOnUse(Mapping[str, Array]):
    """Columns by name, of a store that merges or fetches a column when it is asked for."""

    def __init__(self, store: Store, names: Iterable[str]) -> None:
        self._store = store
        self._names = dict.fromkeys(names)

    def __getitem__(self, name: str) -> Array:
        if name not in self._names:
            raise KeyError(name)
        return self._store.column(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def map_store(folder: Path, manifest: Manifest, **reading: Any) -> Store:
    """The store of a manifest, with its shards mapped; `reading` are options of `map_shard`."""
    columns, values, offsets = map_shards(folder, manifest, **reading)
    return Store(
        columns,
        values,
        num_series=manifest.num_series,
        length=manifest.length,
        offsets=offsets,
        name=str(folder),
        manifest=manifest,
        path=folder,
    )
