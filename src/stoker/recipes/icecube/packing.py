"""Pack the files of the IceCube competition into a store: one series per event, one step per pulse.

    train_meta.parquet              or train_meta/batch_1.parquet and so on: an event per row, sorted by file
    train/batch_1.parquet …         a pulse per row; the pulses of an event are consecutive
    sensor_geometry.csv             is copied into the folder of the store

All footers and the list of files are checked before the first pulse is read. Then files are read one after the other, in parts of some
hundred thousand pulses. Each pulse must belong to the event that the metadata give its row to, and its values must be possible. After
each file (of small ones, after some) the state is written to a journal, so a pack that was killed resumes where it was.

The store has the columns time (int32, ns), charge (float32), sensor_id (int16) and auxiliary (bool) per pulse: 11 bytes. Per event it has
event_id, batch_id (the number of the file), azimuth and zenith.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

import stoker
from stoker import _disk
from stoker._kernels import kernel
from stoker._types import Array
from stoker.errors import (
    BadValueError,
    OptionError,
    SchemaError,
    SourceChangedError,
    SourceEmptyError,
    SourceNotFoundError,
)
from stoker.recipes.icecube.batches import NUM_SENSORS
from stoker.recipes.icecube.tokens import read_geometry
from stoker.store import (
    WORK_NAME,
    ColumnEntry,
    ColumnFile,
    ColumnMark,
    DataSource,
    Dialect,
    Manifest,
    NonFinite,
    NonFiniteCount,
    Progress,
    RowLocation,
    SourceEntry,
    Store,
    find_sources,
    make_work,
    new_store,
    quiet,
    read_ahead,
    to_numpy,
)

GEOMETRY_NAME = "sensor_geometry.csv"
Split = Literal["train", "test"]

_CHUNK_BYTES = 4 << 20  # about 200,000 pulses, which stay in the cache until they are converted; 8 MB doubles the page faults
_SMALL_PULSES = 1 << 19  # files with at most as many are read at once, which costs less than parts of them
_META_ROWS = 1 << 18
_AHEAD = 2
_IDS_AT_ONCE = 1 << 22
_JOURNAL = "journal"
_JOURNAL_PULSES = 4 << 20  # at most about this many, and those of a file, are read again after a kill

_PULSES = {"sensor_id": "integer", "time": "integer", "charge": "float", "auxiliary": "boolean", "event_id": "integer"}
_META = dict.fromkeys(("batch_id", "event_id", "first_pulse_index", "last_pulse_index"), "integer")
_LABELS = {"azimuth": "float", "zenith": "float"}
_MOST_ANGLE = {"azimuth": 2 * math.pi, "zenith": math.pi}
_IS = {"integer": pa.types.is_integer, "float": pa.types.is_floating, "boolean": pa.types.is_boolean}

_STEP = {"time": "<i4", "charge": "<f4", "sensor_id": "<i2", "auxiliary": "|b1"}
_SERIES = {"event_id": "<i8", "batch_id": "<i4", "azimuth": "<f8", "zenith": "<f8"}


def pack_events(
    source: str | Path,
    path: str | Path,
    *,
    split: Split = "train",
    batches: str | None = None,
    replace: bool = False,
    progress: Progress = quiet,
) -> Store:
    """Pack the files of the competition, as downloaded, into a store. A pack that was killed resumes when it is called again.

    Args:
        source: The folder with `train_meta.parquet`, `train/` and `sensor_geometry.csv`.
        path: The folder of the new store.
        split: "test" reads `test_meta.parquet` and `test/`. Events without azimuth and zenith get NaN.
        batches: The numbers of the files to pack, like "1-650" or "651" (default: all that the metadata name).
        replace: Replace a store at `path`, in one step at the end.
        progress: Called with "reading", the share that is done (0 to 1), and the pulses so far.

    Returns:
        The store, opened.

    Raises:
        SourceNotFoundError: A file is missing.
        SchemaError: A file has other columns.
        BadValueError: An event is broken. The message names the file, the event and the row.

    Example:
        >>> import tempfile
        >>> from stoker.recipes.icecube import make_events
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = pack_events(make_events(f"{folder}/icecube", files=2, events=10), f"{folder}/ice.stoker")
        ...     len(store), store.column("batch_id")[[0, -1]].tolist(), list(store.schema)
        (20, [1, 2], ['event_id', 'batch_id', 'azimuth', 'zenith', 'time', 'charge', 'sensor_id', 'auxiliary'])
    """
    folder, target = _disk.check_path(source), _disk.check_path(path)
    if split not in ("train", "test"):
        raise OptionError(f"split is {split!r}; expected 'train' or 'test'.")
    geometry = folder / GEOMETRY_NAME
    if not geometry.is_file():
        raise SourceNotFoundError(f"{geometry} is missing; expected the folder of the competition with {_layout(split)}.")
    read_geometry(geometry)
    inputs = _find_inputs(folder, split, _parse_batches(batches))
    stamp = _fingerprint(inputs)
    is_begun = _load_journal(target, stamp) is not None
    beside = {GEOMETRY_NAME: geometry.read_bytes()}
    with new_store(target, [folder], replace=replace or is_begun, beside=beside) as commit:
        writer = _Writer.open(target, _load_journal(target, stamp))
        _read_pulses(inputs, writer, stamp, progress)
        _check_unchanged(inputs, stamp)
        commit(writer.seal())
    return stoker.open(target)


def _layout(split: str) -> str:
    return f"{split}_meta.parquet, {split}/batch_*.parquet and {GEOMETRY_NAME}"


# What there is to read.


@dataclass(frozen=True, kw_only=True)
class _Inputs:
    """Sources of a pack; everything but the values is checked."""

    meta: list[DataSource]
    pulses: dict[int, DataSource]
    num_events: int
    has_labels: bool
    chosen: tuple[int, int] | None

    @cached_property
    def num_pulses(self) -> int:
        return sum(_num_rows(one) for one in self.pulses.values())


def _parse_batches(batches: str | None) -> tuple[int, int] | None:
    if batches is None:
        return None
    found = re.fullmatch(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?", str(batches))
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
    if first > last:
        raise OptionError(f"batches is {batches!r}; expected the number of a file like '651', or a range like '1-650'.")
    return first, last


def _find_inputs(folder: Path, split: str, chosen: tuple[int, int] | None) -> _Inputs:
    """Find all files, and compare their schemas and the batches that the metadata name with them."""
    single, parts = folder / f"{split}_meta.parquet", folder / f"{split}_meta"
    there = _numbered(folder / split)
    if not there:
        raise SourceNotFoundError(f"{folder / split} has no batch_*.parquet; expected {_layout(split)}.")
    if single.is_file():
        meta = _sources([single])
    elif own := _numbered(parts):
        wanted = [number for number in own if chosen is None or chosen[0] <= number <= chosen[1]]
        meta = _sources([own[number] for number in wanted])
    else:
        raise SourceNotFoundError(f"{single} is missing, and so is {parts}/batch_*.parquet; expected {_layout(split)}.")
    for one in meta:
        _check_schema(one, _META)
    has_labels = all(set(_LABELS) <= set(one.schema().names) for one in meta)
    for one in meta if has_labels else ():
        _check_schema(one, _LABELS)
    if split == "train" and not has_labels:
        raise SchemaError(
            f"{meta[0].label} has no columns azimuth and zenith, which training needs. For test files, pass split='test'."
        )
    counts = _count_events(meta, chosen)
    if not counts:
        what = "no event" if chosen is None else f"no event of the batches {chosen[0]} to {chosen[1]}"
        raise SourceEmptyError(f"{meta[0].label if meta else parts} has {what}, so there is nothing to pack.")
    for number, events in counts.items():
        if number not in there:
            raise SourceNotFoundError(
                f"{folder / split / f'batch_{number}.parquet'} is missing, but the metadata name {events:,} events of it. Fetch the file, "
                f"or choose others with batches=."
            )
    pulses = dict(zip(counts, _sources([there[number] for number in counts]), strict=True))
    for one in pulses.values():
        _check_schema(one, _PULSES)
    return _Inputs(meta=meta, pulses=pulses, num_events=sum(counts.values()), has_labels=has_labels, chosen=chosen)


def _numbered(folder: Path) -> dict[int, Path]:
    """The files batch_<number>.parquet of a folder by their number."""
    found = {path: re.fullmatch(r"batch_(\d{1,9})\.parquet", path.name) for path in folder.iterdir()} if folder.is_dir() else {}
    return dict(sorted((int(name[1]), path) for path, name in found.items() if name))


def _sources(paths: list[Path]) -> list[DataSource]:
    return find_sources(paths, dialect=Dialect(), table=True) if paths else []


def _num_rows(source: DataSource) -> int:
    return int(source.num_positions or 0)


def _check_schema(source: DataSource, expected: dict[str, str]) -> None:
    schema = source.schema()
    for name, kind in expected.items():
        if schema.get_field_index(name) < 0:
            raise SchemaError(
                f"{source.label} has no column {name!r}; it has {', '.join(schema.names)}. Expected {', '.join(expected)}."
            )
        if not _IS[kind](found := schema.field(name).type):
            article = "an" if kind == "integer" else "a"
            raise SchemaError(f"{source.label}: column {name!r} is {found}; expected {article} {kind} type.")


def _count_events(meta: list[DataSource], chosen: tuple[int, int] | None) -> dict[int, int]:
    """Events of each batch, in the order of the metadata, which must be sorted by batch."""
    counts: dict[int, int] = {}
    last = -1
    for source in meta:
        for table, row in _tables(source, ["batch_id"]):
            numbers = table["batch_id"]
            disorder = np.flatnonzero(np.diff(numbers, prepend=last) < 0)
            if len(disorder):
                at = int(disorder[0])
                before = last if at == 0 else int(numbers[at - 1])
                raise BadValueError(
                    f"{source.label}, row {row + at:,}: batch_id {numbers[at]} comes after {before}; expected rows sorted by batch_id."
                )
            last = int(numbers[-1])
            found, sizes = np.unique(numbers, return_counts=True)
            for number, size in zip(found.tolist(), sizes.tolist(), strict=True):
                if chosen is None or chosen[0] <= number <= chosen[1]:
                    counts[number] = counts.get(number, 0) + size
    return counts


def _tables(source: DataSource, names: list[str]) -> Iterator[tuple[dict[str, Array], int]]:
    """Some columns of a source as arrays, part by part, and the row where each part begins."""
    schema = pa.schema([source.schema().field(name) for name in names])
    for task in source.read(schema, start=RowLocation(), chunk_bytes=_META_ROWS * 8 * len(names)):
        chunk = task()
        yield _arrays(source, chunk.table, chunk.begin.row), chunk.begin.row


def _arrays(source: DataSource, table: pa.Table, row: int) -> dict[str, Array]:
    found = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        values = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        if values.null_count:
            at = row + int(np.flatnonzero(~np.asarray(values.is_valid()))[0])
            raise BadValueError(f"{source.label}, row {at:,}: {name} is missing; expected a value in every row.")
        found[name] = to_numpy(values)
    return found


def _fingerprint(inputs: _Inputs) -> str:
    """What must be equal for a journal to belong to this pack."""
    stats = [one.path.stat() for one in (*inputs.meta, *inputs.pulses.values()) if one.path is not None]
    parts = [1, stoker.__version__, inputs.chosen, list(inputs.pulses), [(one.st_size, one.st_mtime_ns) for one in stats]]
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(parts))


def _check_unchanged(inputs: _Inputs, stamp: str) -> None:
    if _fingerprint(inputs) != stamp:
        raise SourceChangedError("a file changed while it was packed. Pack again when nothing writes to the files.")


# Metadata: the events of one file at a time.


@dataclass(frozen=True, kw_only=True)
class _Events:
    """The events of one file, in the order of its pulses."""

    batch: int
    ids: Array
    ends: Array
    """The row after the last pulse of each event."""
    azimuth: Array
    zenith: Array


def _read_meta(inputs: _Inputs) -> Iterator[_Events]:
    """The events of each file in turn. Only the rows of one file are held."""
    names = [*_META, *(_LABELS if inputs.has_labels else ())]
    waiting: list[dict[str, Array]] = []
    for source in inputs.meta:
        for table, _ in _tables(source, names):
            numbers = table["batch_id"]
            cuts = np.flatnonzero(np.diff(numbers)) + 1
            for start, stop in zip([0, *cuts.tolist()], [*cuts.tolist(), len(numbers)], strict=True):
                if waiting and waiting[-1]["batch_id"][0] != numbers[start]:
                    yield from _events_of(inputs, waiting)
                    waiting = []
                # A copy, as a slice would keep the whole table.
                waiting.append({name: values[start:stop].copy() for name, values in table.items()})
    if waiting:
        yield from _events_of(inputs, waiting)


def _events_of(inputs: _Inputs, parts: list[dict[str, Array]]) -> Iterator[_Events]:
    """The events of a file, if it is to be packed; their pulses must follow each other without gaps."""
    batch = int(parts[0]["batch_id"][0])
    source = inputs.pulses.get(batch)
    if source is None:
        return
    rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    if (np.diff(rows["first_pulse_index"]) < 0).any():
        order = np.argsort(rows["first_pulse_index"], kind="stable")
        rows = {name: values[order] for name, values in rows.items()}
    ids, first, ends = rows["event_id"], rows["first_pulse_index"], rows["last_pulse_index"] + 1
    expected = np.concatenate([[0], ends[:-1]])
    if len(bad := np.flatnonzero((first != expected) | (ends <= first))):
        i = bad[0]
        raise BadValueError(
            f"{source.label}: the metadata place event {ids[i]} at rows {first[i]:,} to {ends[i] - 1:,}; expected at least one row, "
            f"beginning at {expected[i]:,}, where the event before it ends."
        )
    if ends[-1] != _num_rows(source):
        raise BadValueError(
            f"{source.label} has {_num_rows(source):,} rows, but its last event, {ids[-1]}, ends at row {ends[-1] - 1:,} according to the "
            f"metadata. Fetch the file again."
        )
    angles = [np.asarray(rows[name], dtype=np.float64) if inputs.has_labels else np.full(len(ids), np.nan) for name in _LABELS]
    for (name, most), values in zip(_MOST_ANGLE.items(), angles, strict=True):
        if inputs.has_labels and len(bad := np.flatnonzero(~((values >= 0) & (values < most + 1e-6)))):
            raise BadValueError(
                f"{source.label}: event {ids[bad[0]]} has the {name} {values[bad[0]]}; expected radians from 0 to {most:.4f}."
            )
    if (np.diff(ids) <= 0).any() and len(again := _repeated(ids)):
        raise BadValueError(
            f"{source.label}: event_id {again[0]} is that of two events according to the metadata; expected each once."
        )
    yield _Events(batch=batch, ids=ids.astype(np.int64), ends=ends.astype(np.int64), azimuth=angles[0], zenith=angles[1])


def _repeated(ids: Array) -> Array:
    """Numbers that are there more than once."""
    found, counts = np.unique(ids, return_counts=True)
    return found[counts > 1]


# Pulses.


def _read_pulses(inputs: _Inputs, writer: _Writer, stamp: str, progress: Progress) -> None:
    """Read, check and convert the pulses of all files in threads, some parts ahead, and append them; after each file its events."""

    def convert(events: _Events, task: Callable[[], Any]) -> tuple[_Events, dict[str, Array], bool]:
        chunk, source = task(), inputs.pulses[events.batch]
        row, end = chunk.begin.row, chunk.begin.row + chunk.table.num_rows
        columns = _arrays(source, chunk.table, row)
        return events, _convert_pulses(source, columns, events, row, writer.room(end - row)), end == events.ends[-1]

    def tasks() -> Iterator[Callable[[], Any]]:
        for events in _read_meta(inputs):
            if events.batch not in writer.done:  # by a pack that was killed
                source = inputs.pulses[events.batch]
                schema = pa.schema([source.schema().field(name) for name in _PULSES])
                is_small = _num_rows(source) <= _SMALL_PULSES
                for task in source.read(schema, start=RowLocation(), chunk_bytes=(4 if is_small else 1) * _CHUNK_BYTES):
                    yield partial(convert, events, task)

    with (
        ThreadPoolExecutor(_AHEAD, thread_name_prefix="stoker-reader") as readers,
        closing(read_ahead(tasks(), readers, depth=_AHEAD)) as parts,
    ):
        for events, converted, is_last in parts:
            writer.append_pulses(converted)
            progress("reading", writer.num_pulses / inputs.num_pulses, writer.num_pulses)
            if is_last:
                writer.append_events(events)
                writer.sources.append(_entry(inputs.pulses[events.batch]))
                writer.done.add(events.batch)
                writer.save_journal(stamp)


def _entry(source: DataSource) -> SourceEntry:
    """A file that was read, with the hash of its bytes."""
    hasher, part = xxhash.xxh3_128(), memoryview(bytearray(1 << 18))
    assert source.path is not None
    with source.path.open("rb", buffering=0) as file:
        while count := file.readinto(part):
            hasher.update(part[:count])
    return SourceEntry(name=source.name, num_bytes=source.num_bytes, num_rows=_num_rows(source), xxh3=hasher.hexdigest())


_TIMES = np.iinfo(np.int32)


def _convert_pulses(
    source: DataSource, columns: dict[str, Array], events: _Events, row: int, room: dict[str, Array]
) -> dict[str, Array]:
    """Pulses as the store holds them, in `room`, each compared with the event that the metadata give its row to."""
    sensor, time, charge, owner = (columns[name] for name in ("sensor_id", "time", "charge", "event_id"))
    if charge.dtype == np.float16:
        charge = charge.astype(np.float32)  # compiled kernels cannot read it
    first = int(np.searchsorted(events.ends, row, side="right"))
    is_good = _is_of_events(owner, events.ids, events.ends - row, first)
    if not (
        _narrow(time, charge, sensor, room["time"], room["charge"], room["sensor_id"], room["charge"].view(np.int32)) and is_good
    ):
        event = np.searchsorted(events.ends, np.arange(row, row + len(time)), side="right")
        _refuse_first(source, columns, events.ids[event], row, [
            ("event_id", owner != events.ids[event], "that of its event, as the metadata say"),
            ("sensor_id", (sensor < 0) | (sensor >= NUM_SENSORS), f"a number from 0 to {NUM_SENSORS - 1}"),
            ("time", (time < _TIMES.min) | (time > _TIMES.max), "nanoseconds that fit into 32 bits"),
            ("charge", ~np.isfinite(room["charge"]), "a finite float32"),
        ])  # fmt: skip
    return {**room, "auxiliary": columns["auxiliary"]}


_EXPONENT = np.int32(0x7F800000)


@kernel
def _narrow(
    time: Array, charge: Array, sensor: Array, out_time: Array, out_charge: Array, out_sensor: Array, charge_bits: Array
) -> bool:
    """Cast pulses to the types of the store; whether all values fit and are possible. Short loops are vectorized."""
    lost, most = np.int64(0), np.int32(0)
    for i in range(len(time)):
        value = np.int32(time[i])
        out_time[i] = value
        lost |= np.int64(value) ^ np.int64(time[i])
    for i in range(len(charge)):
        out_charge[i] = np.float32(charge[i])
    for i in range(len(charge_bits)):
        most = max(most, charge_bits[i] & _EXPONENT)
    low, high = sensor[0], sensor[0]
    for i in range(len(sensor)):
        out_sensor[i] = np.int16(sensor[i])
        low, high = min(low, sensor[i]), max(high, sensor[i])
    return bool(lost == 0 and most < _EXPONENT and low >= 0 and high < NUM_SENSORS)


@kernel
def _is_of_events(owner: Array, ids: Array, ends: Array, event: int) -> bool:
    """Whether all pulses have the number of the event that they lie in; `event` is that of the first one."""
    pulse = 0
    while pulse < len(owner):
        stop, number, wrong = min(ends[event], len(owner)), ids[event], np.int64(0)
        for i in range(pulse, stop):
            wrong |= np.int64(owner[i]) ^ number
        if wrong != 0:
            return False
        pulse, event = stop, event + 1
    return True


def _refuse_first(
    source: DataSource, columns: dict[str, Array], event: Array, row: int, found: list[tuple[str, Array, str]]
) -> None:
    """Raise for the first pulse that is bad, if there is one."""
    places = [(int(bad.argmax()), name, expected) for name, bad, expected in found if bad.any()]
    for place, name, expected in sorted(places, key=lambda one: one[0])[:1]:
        raise BadValueError(
            f"{source.label}, event {event[place]}, row {row + place:,}: {name} is {columns[name][place]}; expected {expected}."
        )


# The store.


class _Journal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The state of a pack between two files."""

    fingerprint: str
    marks: dict[str, ColumnMark]
    sources: list[SourceEntry]
    done: list[int]
    last_id: int
    is_sorted: bool
    lengths: tuple[int, int]


def _load_journal(target: Path, stamp: str) -> _Journal | None:
    """The journal of this very pack, if it was killed before."""
    try:
        digest, _, body = (target / WORK_NAME / _JOURNAL).read_bytes().partition(b"\n")
        if digest.decode("ascii", "replace") != xxhash.xxh3_128_hexdigest(body):
            return None
        journal = msgspec.json.decode(body, type=_Journal)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return journal if journal.fingerprint == stamp else None


class _Writer:
    """The growing columns of the store."""

    def __init__(self, target: Path, files: dict[str, ColumnFile]) -> None:
        self._target = target
        self._files = files
        self.sources: list[SourceEntry] = []
        self.done: set[int] = set()
        self._rooms: list[dict[str, Array]] = []
        self._waiting: list[dict[str, Array]] = []  # events that are not written yet, by column, file by file
        self._in_journal = 0
        self._last_id, self._is_sorted = -1, True
        self._shortest, self._longest = 2**62, 0

    @classmethod
    def open(cls, target: Path, journal: _Journal | None) -> _Writer:
        """Columns as a journal left them; empty ones without a journal, or where their bytes have changed since."""
        kinds = {"offsets": "<i8", **_STEP, **_SERIES}
        paths = {name: target / WORK_NAME / f"final.{name}" for name in kinds}
        if journal is not None:
            found = {name: ColumnFile.reopen(paths[name], np.dtype(kinds[name]), None, journal.marks[name]) for name in kinds}
            files = {name: file for name, file in found.items() if file is not None}
            if len(files) == len(found):
                writer = cls(target, files)
                writer.sources, writer.done = list(journal.sources), set(journal.done)
                writer._last_id, writer._is_sorted = journal.last_id, journal.is_sorted
                writer._shortest, writer._longest = journal.lengths
                return writer
            for file in files.values():
                file.close()
        make_work(target)
        writer = cls(target, {name: ColumnFile.create(paths[name], np.dtype(kinds[name])) for name in kinds})
        writer._files["offsets"].append(np.zeros(1, dtype="<i8"))
        return writer

    @property
    def num_pulses(self) -> int:
        """Pulses so far."""
        return self._files["time"].rows

    def room(self, count: int) -> dict[str, Array]:
        """Memory for converted pulses, which `append_pulses` takes back: fresh memory would cost as much as the conversion."""
        try:
            room = self._rooms.pop()
        except IndexError:  # not asked first: another thread may take the last one
            room = {}
        if count > len(room.get("time", ())):
            room = {name: np.empty(count, _STEP[name]) for name in ("time", "charge", "sensor_id")}
        return {name: values[:count] for name, values in room.items()}

    def append_pulses(self, columns: dict[str, Array]) -> None:
        """Add pulses, converted."""
        for name in _STEP:
            self._files[name].append(columns[name])
        self._rooms.append({name: np.asarray(columns[name].base) for name in ("time", "charge", "sensor_id")})

    def append_events(self, events: _Events) -> None:
        """Add the events of a file, whose pulses were the last to be added."""
        lengths = np.diff(events.ends, prepend=0)
        self._shortest, self._longest = min(self._shortest, int(lengths.min())), max(self._longest, int(lengths.max()))
        self._is_sorted &= bool(events.ids[0] > self._last_id and (np.diff(events.ids) > 0).all())
        self._last_id = int(events.ids[-1])
        self._waiting.append(
            {
                "offsets": events.ends + (self.num_pulses - events.ends[-1]),
                "event_id": events.ids,
                "batch_id": np.full(len(events.ids), events.batch, dtype="<i4"),
                "azimuth": events.azimuth,
                "zenith": events.zenith,
            }
        )

    def _write_events(self) -> None:
        """Write those of some files at once: for small ones it would take longer than to convert their pulses."""
        for name in ("offsets", *_SERIES) if self._waiting else ():
            self._files[name].append(np.concatenate([events[name] for events in self._waiting]))
        self._waiting.clear()

    def save_journal(self, stamp: str) -> None:
        """Write the state, so that a pack that is killed from now on resumes here; not for a few small files."""
        if self.num_pulses - self._in_journal < _JOURNAL_PULSES:
            return
        self._write_events()
        self._in_journal = self.num_pulses
        journal = _Journal(
            fingerprint=stamp,
            marks={name: file.mark() for name, file in self._files.items()},
            sources=self.sources,
            done=sorted(self.done),
            last_id=self._last_id,
            is_sorted=self._is_sorted,
            lengths=(self._shortest, self._longest),
        )
        body = msgspec.json.encode(journal)
        data = xxhash.xxh3_128_hexdigest(body).encode() + b"\n" + body
        _disk.write_file(self._target / WORK_NAME / _JOURNAL, data, durable=False)

    def seal(self) -> Manifest:
        """Move all columns to their final names, and return the manifest to commit."""
        self._write_events()
        if not self._is_sorted:
            self._refuse_repeated_ids()
        num_events, num_pulses = self._files["event_id"].rows, self.num_pulses
        is_uniform = self._shortest == self._longest
        offsets = self._files.pop("offsets")
        nonfinite = {name: self._count_missing(name) for name in ("azimuth", "zenith")}
        finite = NonFinite(nan=0, inf=0, first=None)
        columns = [
            ColumnEntry(
                name=name,
                level="series" if name in _SERIES else "step",
                kind="number",
                unit=None,
                values=self._files[name].seal(self._target),
                texts=None,
                missing=nonfinite.get(name, finite).nan,
                nonfinite=nonfinite.get(name, finite),
            )
            for name in (*_SERIES, *_STEP)
        ]
        return Manifest(
            format="stoker",
            version=1,
            digest="",
            num_series=num_events,
            num_steps=num_pulses,
            length=self._longest if is_uniform else None,
            offsets=None if is_uniform else offsets.seal(self._target),
            key="event_id" if self._is_sorted else None,
            time=None,
            columns=columns,
            notes=[] if self._is_sorted else ["event_id does not rise from file to file, so events cannot be found by it"],
            sources=self.sources,
        )

    def _refuse_repeated_ids(self) -> None:
        """Raise for an event that two files have; a part of the numbers at a time, so that memory is bounded."""
        file = self._files["event_id"]
        num_parts = -(-file.rows // _IDS_AT_ONCE)
        for part in range(num_parts):
            blocks = (file.read(at, min(at + _IDS_AT_ONCE, file.rows)) for at in range(0, file.rows, _IDS_AT_ONCE))
            again = _repeated(np.concatenate([ids[ids % num_parts == part] for ids in blocks]))
            if len(again):
                rows = self._rows_of(int(again[0]))[:2]
                first, second = (int(self._files["batch_id"].read(row, row + 1)[0]) for row in rows)
                raise BadValueError(
                    f"event_id {again[0]} is in batch_{first}.parquet and again in batch_{second}.parquet; expected each event once. "
                    f"Choose other files with batches=, or remove one of the two events."
                )

    def _rows_of(self, event_id: int) -> list[int]:
        file, found = self._files["event_id"], list[int]()
        for at in range(0, file.rows, _IDS_AT_ONCE):
            found += (at + np.flatnonzero(file.read(at, min(at + _IDS_AT_ONCE, file.rows)) == event_id)).tolist()
        return found

    def _count_missing(self, name: str) -> NonFinite:
        tally, file = NonFiniteCount(), self._files[name]
        for start in range(0, file.rows, 1 << 20):
            tally.add(file.read(start, min(start + (1 << 20), file.rows)), first_step=start)
        return tally.at(None)


def geometry_of(store: Store) -> Path:
    """The file with the positions of the sensors that `pack_events` put beside the columns of a store.

    Raises:
        SourceNotFoundError: The store has none.
    """
    if store.path is None or not (store.path / GEOMETRY_NAME).is_file():
        raise SourceNotFoundError(
            f"{store.name} has no {GEOMETRY_NAME}. Copy that of the competition into its folder, or pass geometry=."
        )
    return store.path / GEOMETRY_NAME
