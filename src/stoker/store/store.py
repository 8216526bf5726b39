"""`Store`: immutable columns of ragged series, mapped from disk or held in memory behind one interface.

Opening reads the manifest and maps the shards. It never reads values, so it takes the same time for ten series and for 48 million.
Columns and series are read-only views; nothing is copied until the caller does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, overload

import numpy as np
import numpy.typing as npt

from stoker._disk import check_path, open_plain
from stoker._types import Array
from stoker.errors import ManifestError, OptionError, StoreDamagedError, StoreNotFoundError
from stoker.store import manifest as manifests
from stoker.store.manifest import ColumnEntry, Manifest, SourceEntry
from stoker.store.shards import Column, Texts, ends_of, map_shard, open_shard

if TYPE_CHECKING:
    import pyarrow as pa


MANIFEST_NAME = "manifest.json"
WORK_NAME = "work"


class Series(Mapping[str, Any]):
    """One series of a store: a mapping from column names to read-only arrays (or to single values, per series).

    Example:
        >>> series = Store.from_arrays(x=[[1.0, 2.0], [3.0]], name=["a", "b"])[0]
        >>> series.num_steps, series["x"].tolist(), series["name"]
        (2, [1.0, 2.0], 'a')
    """

    __slots__ = ("_start", "_stop", "_store", "index")

    def __init__(self, store: Store, index: int, start: int, stop: int) -> None:
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
        from stoker.store.interop import store_from_arrays

        return store_from_arrays(columns, lengths=lengths)

    def __len__(self) -> int:
        return self._num_series

    @overload
    def __getitem__(self, index: int) -> Series: ...
    @overload
    def __getitem__(self, index: slice) -> list[Series]: ...
    def __getitem__(self, index: int | slice) -> Series | list[Series]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._num_series))]
        i = index if index >= 0 else index + self._num_series
        if not 0 <= i < self._num_series:
            raise IndexError(f"{self.name} has {self._num_series:,} series; there is no series {index:,}.")
        if self._offsets is None:
            length = self._length or 0
            return Series(self, i, i * length, (i + 1) * length)
        start, stop = self._offsets.item(i), self._offsets.item(i + 1)
        if not 0 <= start <= stop <= self._num_steps:
            raise StoreDamagedError(
                f"{self.name}: the offsets of series {i:,} are {start:,} and {stop:,} of {self._num_steps:,}. Run `stoker verify`."
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
    def version(self) -> int:
        """The version of the store: 1 as packed, one more with each `stoker.append`."""
        return (self.manifest.revision if self.manifest else None) or 1

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

    def texts(self, name: str) -> Texts:
        """The categories of a category column, or the strings of a text column."""
        column = self.schema.get(name) or self._unknown(name)
        if column.texts is None:
            raise OptionError(f"column {name!r} of {self.name} holds {column.label}, not strings or categories.")
        return column.texts

    def find(self, key: str | int) -> int:
        """The index of the (first) series with this key.

        Raises:
            OptionError: the store has no key column.
            KeyError: no series has this key.
        """
        if self.key is None:
            raise OptionError(f"{self.name} was packed without series=, so its series have numbers, not keys.")
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
        found = [i for i, name in enumerate(names) if name.endswith(f":{key}") and name.removesuffix(f":{key}") in files]
        if len(found) > 1:
            shown = ", ".join(repr(names[i]) for i in found[:3])
            raise KeyError(f"{self.name} has {len(found):,} series named {key!r}: {shown}. Give one of these names.")
        return found[0] if found else self._not_found(key)

    def _not_found(self, key: str | int) -> NoReturn:
        raise KeyError(f"{self.name} has no series with {self.key} {key!r}.")

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
        from stoker.store.expressions import find_series

        return find_series(expression, schema=self.schema, values=self._values, offsets=self.offsets, name=self.name)

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

        save_store(self, check_path(path), note=note, replace=replace)
        return open_store(path)

    def to_arrow(self) -> pa.Table:
        """An Arrow table with one row per series: list columns for steps, plain ones for series. Numbers are shared, not copied."""
        from stoker.store.interop import store_to_arrow

        return store_to_arrow(self)

    def _pieces(self, name: str, max_bytes: int) -> Iterator[Array]:
        """A column from its first row to its last, in pieces, so that no more of it has to be in memory at once."""
        values = self.column(name)
        rows = max(1, max_bytes // (values.dtype.itemsize * (values.shape[1] if values.ndim == 2 else 1)))
        return (np.ascontiguousarray(values[start : start + rows]) for start in range(0, len(values), rows))

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


def open_store(path: str | os.PathLike[str], *, version: int | None = None) -> Store:
    """Open a packed store: check the manifest and the size of every shard, and map the shards. Reads no values.

    What `stoker.append` has added is mapped and merged when it is first used.

    Args:
        path: the folder of the store.
        version: an earlier version of a store that was appended to, see `stoker.history` (default: the newest).

    Raises:
        StoreNotFoundError: there is no store at this path, or it has no such version.
        ManifestError: the manifest breaks a rule of the format.
        StoreDamagedError: a shard is missing, or has the wrong size or header.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Store.from_arrays(x=[[1.0, 2.0], [3.0]]).save(folder + "/a.stoker")
        ...     open_store(folder + "/a.stoker").lengths.tolist()
        [2, 1]
    """
    folder = check_path(path)
    while True:
        stamp = manifest_stamp(folder)
        try:
            return _open(folder, read_manifest(folder), version)
        except StoreDamagedError:
            if manifest_stamp(folder) == stamp:
                raise  # the store was not replaced meanwhile, so it is damaged


def _open(folder: Path, manifest: Manifest, version: int | None) -> Store:
    if manifest.parts is None and version in (None, 1):
        return map_store(folder, manifest)
    from stoker.store.versions import AppendedStore, manifest_of

    manifest = manifest_of(folder, manifest, version)
    base = map_store(folder, manifest)
    return base if manifest.parts is None else AppendedStore(base)


def manifest_stamp(folder: Path) -> tuple[int, int, int] | None:
    """Changes whenever a pack replaces the manifest, even by an equal one; None where there is none."""
    try:
        found = (folder / MANIFEST_NAME).lstat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns


def read_manifest(folder: Path) -> Manifest:
    """Read and check the manifest of a store."""
    path = folder / MANIFEST_NAME
    if not folder.is_dir():
        _explain_absence(folder)
    try:
        fd = open_plain(path, ManifestError)
    except FileNotFoundError:
        _explain_absence(folder)
    try:
        # One byte more than allowed, so that the size rule can fire without reading a file of any size.
        with os.fdopen(fd, "rb") as file:
            data = file.read(manifests.MAX_BYTES + 1)
    except OSError as error:
        raise ManifestError(f"{path} cannot be read ({os.strerror(error.errno or 0)}).") from error
    return manifests.load(data, str(path))


def _explain_absence(folder: Path) -> NoReturn:
    if not folder.exists():
        raise StoreNotFoundError(f"{folder} does not exist. Make a store with `stoker pack SOURCE {folder}`.")
    if (folder / WORK_NAME).is_dir():
        raise StoreNotFoundError(f"{folder} holds a pack that was interrupted: run the same `stoker pack` again to resume it.")
    raise StoreNotFoundError(f"{folder} is not a store: it has no {MANIFEST_NAME}.")


def map_store(folder: Path, manifest: Manifest, *, read_below: int = 0) -> Store:
    """The store of a manifest, with its shards mapped; those of fewer than `read_below` bytes are read."""
    columns: dict[str, Column] = {}
    values: dict[str, Array] = {}
    for entry in manifest.columns:
        columns[entry.name] = _column(folder, entry, read_below)
        if entry.values is not None:
            values[entry.name] = map_shard(folder, entry.values, f"column {entry.name!r}", read_below=read_below)
    offsets = None
    if manifest.offsets is not None:
        offsets = map_shard(folder, manifest.offsets, _OFFSETS, read_below=read_below)
        _check_ends(folder, _OFFSETS, (offsets.item(0), offsets.item(-1)), manifest.num_steps)
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


_OFFSETS = "the offsets of the series"


def _check_ends(folder: Path, what: str, ends: tuple[int, int], expected: int) -> None:
    if ends != (0, expected):
        raise StoreDamagedError(
            f"{folder}: {what} run from {ends[0]:,} to {ends[1]:,}, but 0 to {expected:,} are expected. Pack the store again."
        )


def check_staged(folder: Path, data: bytes) -> None:
    """Refuse manifest bytes that `open_store` would refuse in this folder; nothing is mapped. Called before a commit."""
    manifest = manifests.load(data, str(folder / MANIFEST_NAME))
    for column in manifest.columns:
        if column.values is not None:
            os.close(open_shard(folder, column.values, f"column {column.name!r}"))
        if column.texts is not None:
            os.close(open_shard(folder, column.texts.utf8, f"texts of column {column.name!r}"))
            what = f"the text offsets of column {column.name!r}"
            _check_ends(folder, what, ends_of(folder, column.texts.offsets, what), column.texts.utf8.shape[0])
    if manifest.offsets is not None:
        _check_ends(folder, _OFFSETS, ends_of(folder, manifest.offsets, _OFFSETS), manifest.num_steps)


def _column(folder: Path, entry: ColumnEntry, read_below: int) -> Column:
    shape = entry.values.shape if entry.values is not None else []
    texts = None
    if entry.texts is not None:
        what = f"the text offsets of column {entry.name!r}"
        utf8 = map_shard(folder, entry.texts.utf8, f"texts of column {entry.name!r}", read_below=read_below)
        texts = Texts(utf8, map_shard(folder, entry.texts.offsets, what, read_below=read_below))
        _check_ends(folder, what, (texts.offsets.item(0), texts.offsets.item(-1)), len(texts.utf8))
    return Column(
        name=entry.name,
        dtype=np.dtype(entry.values.dtype) if entry.values is not None else None,
        level=entry.level,
        kind=entry.kind,
        unit=entry.unit,
        width=shape[1] if len(shape) == 2 else None,
        texts=texts,
        missing=entry.missing,
        nonfinite=entry.nonfinite,
    )
