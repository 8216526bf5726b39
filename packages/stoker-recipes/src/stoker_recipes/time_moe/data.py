"""`open_corpus`: the series of a store, a tree of the authors' files, or a table that is packed first, numbered from 0.

A tree is read as the authors' `TimeMoEDataset` reads it. In each folder, in the order of names:

1. files of series: `.json`, `.jsonl` and `.npy` (`general`),
2. binary folders in it: `meta.json` and `.bin`, mapped in place,
3. the folders in it, one after the other, including binary ones.

The authors use the order of the file system; sorted, the order of the series is the same on every machine. A file that neither reader
takes is reported, and a pickle is an error. Values keep their type in the files.
"""

from __future__ import annotations

import difflib
import json
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import psutil
import xxhash

import stoker
from stoker.errors import OptionError, SourceEmptyError, SourceInvalidError, SourceNotFoundError, SourceTooLargeError
from stoker.extend import Array, readable_bytes
from stoker_recipes.time_moe.folders import is_time_moe, map_time_moe

Report = Callable[[str], None]

MANIFEST, PACKED = "manifest.json", ".stoker"
META = "meta.json"
TABLES = (".csv", ".tsv", ".txt")
PICKLES = ("pkl", "pickle")
LOOKED_AT = 1 << 30  # points of mapped files that are checked: seconds, where a whole corpus would take hours
_LOOK = 1 << 22
_SHOWN = 8


@dataclass(frozen=True, kw_only=True)
class Flat:
    """One column of a store: series end to end."""

    store: stoker.Store
    column: str
    own: Sequence[Array] | None = None
    """Each series in its own type, where that is not the column's: for JSON files with series of integers and of floats."""
    file: str = ""  # json, jsonl or npy, if it was read from such a file, which has no digest

    @property
    def values(self) -> Array:
        """All points, in the type that they are stored in."""
        return self.store.column(self.column)

    def __len__(self) -> int:
        return len(self.store)


class Corpus:
    """All series of some columns, numbered from 0 in the order of files and columns; `open_corpus` opens one.

    Example:
        >>> import stoker
        >>> corpus = open_corpus(stoker.Store.from_arrays(x=[[1.0, 2.0], [3.0, 4.0, 5.0]]))
        >>> len(corpus), corpus.num_points, corpus.series(1).tolist()
        (2, 5, [3.0, 4.0, 5.0])
    """

    def __init__(self, flats: Sequence[Flat], *, name: str) -> None:
        if not sum(map(len, flats)):
            raise SourceEmptyError(f"{name} has no series. Pack or fetch it again.")
        self.flats = list(flats)
        self.name = name
        self.firsts: Array = np.concatenate([[0], np.cumsum([len(flat) for flat in flats])]).astype(np.int64)
        """The number of the first series of each flat, and the end of the last."""
        offsets = [flat.store.offsets for flat in flats]
        # A single store is not copied: it may have many millions of series.
        self.begins: Array = offsets[0][:-1] if len(flats) == 1 else np.concatenate([offset[:-1] for offset in offsets])
        self.ends: Array = offsets[0][1:] if len(flats) == 1 else np.concatenate([offset[1:] for offset in offsets])

    def __len__(self) -> int:
        return int(self.firsts[-1])

    @property
    def num_points(self) -> int:
        """Points of all series."""
        return sum(flat.store.num_steps for flat in self.flats)

    @property
    def lengths(self) -> Array:
        """Points of each series. Computed on each call."""
        return np.asarray(self.ends - self.begins)

    def flat_of(self, series: Array) -> Array:
        """Which flat each of these series is in."""
        return np.searchsorted(self.firsts, series, side="right") - 1

    def series(self, number: int) -> Array:
        """The points of one series, as a view."""
        flat = self.flats[int(self.flat_of(np.array(number)))]
        return flat.values[int(self.begins[number]) : int(self.ends[number])]

    def series_name(self, number: int) -> str:
        """The name of a series: its key or file, and its column where there are several; else its number."""
        at = int(self.flat_of(np.array(number)))
        column, names = self.flats[at].column, _names(self.flats[at].store)
        several = len({flat.column for flat in self.flats}) > 1
        if names is None:
            return column if several and len(self.flats[at]) == 1 else f"{column}:{number}" if several else str(number)
        key = str(names[number - int(self.firsts[at])])
        return f"{key}:{column}" if several else key

    def find_nonfinite(self) -> tuple[int, int] | None:
        """The first NaN or Inf: its series, and its position there.

        Stores have counted them. Of other files, `LOOKED_AT` points are checked.
        """
        left = LOOKED_AT
        for first, flat in zip(self.firsts.tolist(), self.flats, strict=False):
            if flat.values.dtype.kind != "f":
                continue
            if flat.store.digest:
                place = flat.store.schema[flat.column].nonfinite.first
                if place is not None:
                    return first + place[0], place[1]
                continue
            for begin in range(0, min(len(flat.values), left), _LOOK):
                bad = ~np.isfinite(flat.values[begin : begin + _LOOK])
                if bad.any():
                    at = begin + int(bad.argmax())
                    series = int(np.searchsorted(flat.store.offsets, at, side="right")) - 1
                    return first + series, at - int(flat.store.offsets[series])
            left -= min(len(flat.values), left)
        return None

    def find(self, name: str) -> int:
        """The number of a series by its name, the end of its name after a colon, or its number."""
        is_number = name.isascii() and name.isdecimal() and int(name) < len(self)
        if is_number and self.series_name(int(name)) == name:
            return int(name)  # series without names, of which there may be millions
        names = [self.series_name(number) for number in range(len(self))]
        matches = [i for i, text in enumerate(names) if text == name] or [
            i for i, text in enumerate(names) if text.endswith(f":{name}")
        ]
        if len(matches) > 1:
            said = ", ".join(repr(names[i]) for i in matches[:_SHOWN])
            raise OptionError(f"{self.name} has {len(matches):,} series {name!r}: {said}. Use the full name.", parameter="series")
        if matches or is_number:
            return matches[0] if matches else int(name)
        tails = {name.rpartition(":")[2]: name for name in names}
        near = [tails.get(match, match) for match in difflib.get_close_matches(name, [*tails, *names], n=1)]
        shown = ", ".join(names[:_SHOWN]) + (" …" if len(names) > _SHOWN else "")
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise OptionError(f"{self.name} has no series {name!r}; it has {shown}.{hint}", parameter="series")

    def only(self, number: int) -> Corpus:
        """A corpus of one series."""
        name = self.series_name(number)
        store = stoker.Store.from_arrays(x=[self.series(number)])
        return Corpus([Flat(store=store, column="x")], name=f"series {name} of {self.name}")

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the bounds of all series, and of all values of packed stores and of files in memory."""
        whole = xxhash.xxh3_64()
        for flat in self.flats:
            whole.update(flat.store.digest.encode() if flat.store.digest else np.ascontiguousarray(flat.store.offsets).tobytes())
            if flat.file:
                whole.update(np.ascontiguousarray(flat.values).data)
            whole.update(f"{flat.column} {flat.values.dtype} {len(flat)}".encode())
        return whole.hexdigest()

    def __repr__(self) -> str:
        return f"<corpus {self.name}: {len(self):,} series, {self.num_points:,} points>"


def _names(store: stoker.Store) -> Sequence[Any] | None:
    """The names of the series of a store."""
    texts = [column for column in store.schema.values() if column.level == "series" and column.kind == "text"]
    if store.key is not None and store.schema[store.key].level == "series":
        column = store.schema[store.key]
        return column.texts if column.texts is not None else store.column(store.key)  # type: ignore[return-value]
    return texts[0].texts if texts else None


def warn(note: str) -> None:
    """Report something as a Python warning."""
    warnings.warn(note, stacklevel=3)


def open_corpus(
    data: str | os.PathLike[str] | stoker.Store, *, columns: Sequence[str] | None = None, report: Report = warn
) -> Corpus:
    """Open a store, a tree of the authors' binary folders and files, one such folder or file, or a table that `stoker.pack` reads.

    Args:
        data: A path, or an open store. A table (`x.csv`) is packed once, beside itself: `x.csv.stoker`.
        columns: Columns of a store or table to use; each gives its own series. Default: all columns of numbers.
        report: Called with one line on what was left out. Default: a Python warning.

    Returns:
        The series.

    Raises:
        SourceError: There is nothing to read, or a file cannot be read.
        OptionError: A column does not exist.

    Example:
        >>> import stoker
        >>> open_corpus(stoker.Store.from_arrays(x=[[1.0, 2.0], [3.0, 4.0, 5.0]]))
        <corpus <memory>: 2 series, 5 points>
    """
    if isinstance(data, stoker.Store):
        return Corpus(_flats(data, columns), name=data.name)
    path = Path(data)
    if not path.exists():
        raise SourceNotFoundError(f"{path} does not exist. Pass a store, a Time-MoE folder, or a file of series.")
    if path.is_dir() and _is_store(path):
        return Corpus(_flats(stoker.open(path), columns), name=str(path))
    if path.is_dir():
        flats = _tree(path, columns, report)
    elif _kind(path) in PICKLES:
        _refuse_pickle(path)
    else:
        try:
            flats = _general(path, columns, report) if _kind(path) in KINDS else _flats(_packed(path), columns)
        except NotSeries:  # a table in JSON lines
            flats = _flats(_packed(path), columns)
    return Corpus(flats, name=str(path))


def _tree(path: Path, columns: Sequence[str] | None, report: Report) -> list[Flat]:
    """All series of a tree; files that are left out are reported in one line."""
    left_out: list[str] = []
    flats: list[Flat] = []
    for source in [path] if is_time_moe(path) else _walk(path, left_out):
        try:
            if source.is_file():
                flats += _general(source, columns, report)
            else:
                flats += [flat for store in map_time_moe(source) for flat in _flats(store, columns)]
        except SourceEmptyError:
            left_out.append(f"{source.relative_to(path)} (no series)")
    if is_time_moe(path):
        left_out += sorted(entry.name for entry in path.iterdir() if entry.name != META and entry.suffix != ".bin")
    if not flats:
        held = f"it holds {_listed(left_out)}" if left_out else "it is empty"
        raise SourceNotFoundError(
            f"{path} is neither a store nor a tree of Time-MoE data (meta.json with .bin files, .jsonl, .json, .npy): {held}. "
            f'Pack tables first: stoker pack "{path}/**/*.csv" {path.name}.stoker --wide'
        )
    if left_out:
        reads = "Time-MoE reads binary folders, .json, .jsonl and .npy; pack the rest separately."
        report(f"{path}: left out {_listed(left_out)}. {reads}")
    return flats


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN]) + (" …" if len(names) > _SHOWN else "")
    return f"{len(names):,} other {'file or folder' if len(names) == 1 else 'files or folders'} ({shown})"


def _walk(tree: Path, left_out: list[str]) -> Iterator[Path]:
    """Files of series and binary folders in their order; other names are added to `left_out`."""

    def stop(error: OSError) -> NoReturn:
        raise SourceInvalidError(f"{error.filename} cannot be read: {error.strerror}. Change its mode, or move it out of {tree}.")

    for place, folders, names in os.walk(tree, onerror=stop):
        here, whole = Path(place), is_time_moe(Path(place))
        for name in sorted(names):
            path = here / name
            if _kind(path) == "pkl":
                _refuse_pickle(path)
            if name != META and _kind(path) in KINDS and path.is_file():
                yield path
            elif not (whole and (name == META or name.endswith(".bin"))):
                left_out.append(str(path.relative_to(tree)))
        folders.sort()
        for name in list(folders):
            path = here / name
            if _is_store(path):  # its shards are .npy files, but not series
                folders.remove(name)
                left_out.append(f"{path.relative_to(tree)} (a store)")
            elif is_time_moe(path):
                yield path
            elif path.is_symlink():
                left_out.append(f"{path.relative_to(tree)} (a link to a folder)")


def _kind(path: Path) -> str:
    """The suffix of a name, as the authors compare it: case-sensitive, and also for a name that is only a suffix."""
    return path.name.rpartition(".")[2] if "." in path.name else ""


def _refuse_pickle(path: Path) -> NoReturn:
    raise SourceInvalidError(
        f"{path} is a pickle, which can run code and is never read. Write its series as .jsonl, one list per line, or move it away."
    )


def _is_store(folder: Path) -> bool:
    manifest = folder / MANIFEST
    if not manifest.is_file():
        return False
    with manifest.open("rb") as file:
        return b'"stoker"' in file.read(64)


def _general(path: Path, columns: Sequence[str] | None, report: Report) -> list[Flat]:
    """The series of a file: one flat array of a common type, and beside it their own types where these differ."""
    if wrong := [name for name in columns or () if name != "sequence"]:
        raise OptionError(
            f"{path} has no column {wrong[0]!r}: it holds series without columns. Leave columns out.", column=wrong[0], path=path
        )
    file = read_series(path)
    if file.rounded is not None:
        why = "integers beyond 2**53, which float64 rounds. Subtract a constant from them first"
        report(f"{path}: series {file.rounded} has {why}.")
    named: dict[str, Any] = {} if file.names is None else {"name": file.names}
    store = stoker.Store.from_arrays(sequence=file.series, **named)
    return [Flat(store=flat.store, column=flat.column, own=file.own, file=_kind(path)) for flat in _flats(store, columns)]


def _flats(store: stoker.Store, columns: Sequence[str] | None) -> list[Flat]:
    flat = [column for column in store.schema.values() if (column.level, column.kind, column.width) == ("step", "number", None)]
    fits = [column.name for column in flat if column.dtype is not None and column.dtype.kind in "iuf"]
    for name in columns or ():
        if name not in fits:
            raise OptionError(
                f"{store.name} has no column of numbers {name!r}; it has {', '.join(fits) or 'none'}.", parameter="columns"
            )
    values = [name for name in fits if name != store.time] or fits  # a time is not a series to learn
    wanted = values if columns is None else list(columns)
    if not wanted:
        raise OptionError(
            f"{store.name} has no column with one number per step; it has {', '.join(store.schema)}.", parameter="columns"
        )
    return [Flat(store=store, column=name) for name in wanted]


def _packed(path: Path) -> stoker.Store:
    """The store beside a file; packed where there is none newer than the file. A store of other sources is an error."""
    target = path.with_name(path.name + PACKED)
    manifest = target / MANIFEST
    if manifest.is_file():
        store = stoker.open(target)
        sources = store.manifest.sources if store.manifest is not None else []
        if [source.name for source in sources] != [path.name]:
            raise OptionError(f"{target} is a store, but not of {path}, which is packed there. Rename one of them.", path=target)
        if manifest.stat().st_mtime_ns >= path.stat().st_mtime_ns and sources[0].num_bytes == path.stat().st_size:
            return store
    return stoker.pack(path, target, wide=path.suffix.lower() in TABLES, replace=manifest.is_file())


# ---- files of series, as the authors' `GeneralDataset` reads them: `.jsonl`, `.json` and `.npy` ----
#
# A line of `.jsonl`, an element of the list in a `.json` file, or a row of a 2-D `.npy` array is a series: a list of numbers, or an
# object with one as "sequence". `numpy.array` of a list decides the type of that series: integers are int64, and the authors'
# normalisation casts back to it, series by series. A pickle is never read.

KINDS = ("json", "jsonl", "npy")
KEY = "sequence"
EXACT = 2**53  # beyond this, float64 does not hold every integer
MEMORY_SHARE = 0.5  # share of the free memory for one file
DOCUMENT_COST = 10
"""Bytes of memory per byte of a .json document, which is parsed at once: a list slot and a float object per three characters."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """The series of one file."""

    series: Sequence[Array] | Array
    names: list[str] | None
    own: list[Array] | None
    """`series` in their own types, where the authors' arithmetic depends on these: mixed, beyond float64, or the other byte order."""
    rounded: int | None = None  # the first series with an integer that float64 does not hold


class NotSeries(SourceInvalidError):
    """JSON whose first element is not a series: a table, or something else."""


def read_series(path: Path) -> Found:
    """Read all series of a file into memory; `.npy` is mapped. Raises `NotSeries` for JSON that is not a list of series."""
    if path.name.endswith(".npy"):
        return _read_npy(path)
    series: list[Array] = []
    names: list[str] = []
    room = int(psutil.virtual_memory().available * MEMORY_SHARE)
    for number, element in _elements(path):
        place = f"{'line' if path.name.endswith('.jsonl') else 'element'} {number:,} of {path}"
        if not series and not isinstance(element.get(KEY) if isinstance(element, dict) else element, list):
            raise NotSeries(f"{place} is not a list of numbers, nor an object with one as {KEY!r}. Move the file away, or fix it.")
        series.append(_as_array(element, place))
        texts = [value for value in element.values() if isinstance(value, str)] if isinstance(element, dict) else []
        names += [text for text in texts[:1] if len(names) == len(series) - 1]
        room -= 2 * series[-1].nbytes  # again when all are concatenated
        if room < 0:
            _refuse_large(path)
    if not series:
        raise SourceEmptyError(f"{path} holds no series. Remove it, or write one list of numbers per line.")
    types = {array.dtype for array in series if len(array)}
    integers = ((number, array) for number, array in enumerate(series) if array.dtype.kind in "iu" and len(array))
    rounded = next((number for number, array in integers if int(array.max()) > EXACT or int(array.min()) < -EXACT), None)
    typed = series if len(types) > 1 or rounded is not None else None
    return Found(series=series, names=names if len(names) == len(series) else None, own=typed, rounded=rounded)


def _elements(path: Path) -> Iterator[tuple[int, Any]]:
    """The JSON values of a file, numbered from 1. Empty lines hold none."""
    most = max(1, int(psutil.virtual_memory().available * MEMORY_SHARE / DOCUMENT_COST))
    number = 0
    try:
        with path.open(encoding="utf-8-sig") as file:
            if not path.name.endswith(".jsonl"):
                if path.stat().st_size > most:
                    _refuse_large(path)
                document = json.load(file) if path.stat().st_size else []
                if not isinstance(document, list):
                    raise NotSeries(f"{path} is a JSON {_kind_of(document)}; expected a list of series. Move it away, or fix it.")
                yield from enumerate(document, 1)
                return
            while line := file.readline(most):
                number += 1
                if len(line) == most:
                    _refuse_large(path)
                if line.strip():
                    yield number, json.loads(line)
    except UnicodeDecodeError as error:
        byte = f"{error.object[error.start]:#04x}"
        raise SourceInvalidError(f"{path} is not UTF-8: it has a byte {byte}. Encode it again.") from error
    except (SourceInvalidError, SourceTooLargeError):
        raise
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else getattr(error, "msg", error)
        place = f"line {number:,} of {path}" if number else str(path)
        raise SourceInvalidError(f"{place} is not JSON: {str(why)[:80]}. Fix it, or move it away.") from error


def _as_array(element: Any, place: str) -> Array:
    """The series of one element, as the authors read it. A null is a missing point: NaN."""
    if isinstance(element, dict) and KEY not in element:
        has = ", ".join(repr(str(key)[:20]) for key in islice(element, 4)) or "no key"
        advice = f'Write {{"{KEY}": [numbers]}}, or pack the file: stoker pack'
        raise SourceInvalidError(f"{place} has no {KEY!r}; it has {has}. {advice}")
    values = element[KEY] if isinstance(element, dict) else element
    if not isinstance(values, list):
        raise SourceInvalidError(f"{place} is a JSON {_kind_of(values)}; expected a list of numbers.")
    try:
        array = np.array(values)
        if array.dtype == object and None in values:
            array = np.array([np.nan if value is None else value for value in values])
    except ValueError:  # lists of several lengths
        array = np.empty((0, 0))
    if array.ndim != 1:
        advice = "expected one number per point. Write each channel as a series"
        raise SourceInvalidError(f"{place} holds lists within its list; {advice}.")
    if array.dtype.kind not in "iuf":
        is_number = [
            isinstance(value, float | None)
            or (isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**64)
            for value in values
        ]
        at = is_number.index(False) if False in is_number else 0
        raise SourceInvalidError(
            f"{place} has {str(json.dumps(values[at]))[:40]} at point {at + 1:,}; expected numbers, and integers of at most 64 bits. "
            f"Write larger ones as floats (1e30), and null or NaN for missing points."
        )
    return array


def _kind_of(value: Any) -> str:
    names = {dict: "object", list: "list", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


def _read_npy(path: Path) -> Found:
    """Rows are series; a 1-D array is one series."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        why = f"is not a .npy file: {str(error).splitlines()[0][:80]}. Write it again, or move it away."
        if "Python objects" in str(error) or "pickle" in str(error):
            why = "holds Python objects, which are pickles and never read. Save numbers in a 2-D array, or use .jsonl."
        raise SourceInvalidError(f"{path} {why}") from error
    if array.ndim not in (1, 2) or array.dtype.kind not in "iuf" or array.dtype.itemsize > 8:
        what = f"{array.dtype} of shape {array.shape}"
        raise SourceInvalidError(f"{path} holds {what}; expected numbers, one series per row of a 2-D array.")
    if not array.size:
        raise SourceEmptyError(f"{path} holds no series (shape {array.shape}). Remove it.")
    rows = np.asarray(array).reshape(1, -1) if array.ndim == 1 else np.asarray(array)
    native = rows.astype(rows.dtype.newbyteorder("="), copy=False)
    swapped = None if rows.dtype.isnative else list(rows)  # NumPy sums swapped bytes in another order
    return Found(series=native, names=None, own=swapped)


def _refuse_large(path: Path) -> NoReturn:
    size, advice = readable_bytes(path.stat().st_size), f"Pack it first: stoker pack {path} {path.stem}.stoker"
    raise SourceTooLargeError(f"{path} ({size}) needs more than half of the free memory. {advice}")
