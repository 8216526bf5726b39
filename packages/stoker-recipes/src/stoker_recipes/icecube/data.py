"""Pack the files of the IceCube competition into a store: one series per event, one step per pulse.

    train_meta.parquet              or train_meta/batch_1.parquet and so on: an event per row, sorted by file
    train/batch_1.parquet …         a pulse per row; the pulses of an event are consecutive
    sensor_geometry.csv             is copied into the folder of the store

All footers and the list of files are checked before the first pulse is read. Each file is a source of `stoker.store.pack`
(`_EventSource`): its rows are events, with lists of pulses. Each pulse must belong to the event that the metadata give its row to, and
its values must be possible.

The store has the columns time (int32, ns), charge (float32), sensor_id (int16) and auxiliary (bool) per pulse: 11 bytes. Per event it has
event_id, batch_id (the number of the file), azimuth and zenith. Events are sorted by event_id, as those of the competition are.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa

from stoker.errors import BadValueError, OptionError, SchemaError, SourceChangedError, SourceEmptyError, SourceNotFoundError
from stoker.extend import Array, disk, kernel
from stoker.store import (
    Chunk,
    DataSource,
    Packer,
    PackOptions,
    Progress,
    RowLocation,
    Store,
    Task,
    WrappedSource,
    find_sources,
    from_numpy,
    one_array,
    parse_threads,
    quiet,
    to_numpy,
)
from stoker_recipes.icecube.batches import NUM_SENSORS
from stoker_recipes.icecube.tokens import read_geometry

GEOMETRY_NAME = "sensor_geometry.csv"
Split = Literal["train", "test"]

_META_ROWS = 1 << 18

_PULSES = {"sensor_id": "integer", "time": "integer", "charge": "float", "auxiliary": "boolean", "event_id": "integer"}
_META = dict.fromkeys(("batch_id", "event_id", "first_pulse_index", "last_pulse_index"), "integer")
_LABELS = {"azimuth": "float", "zenith": "float"}
_MOST_ANGLE = {"azimuth": 2 * math.pi, "zenith": math.pi}
_IS = {"integer": pa.types.is_integer, "float": pa.types.is_floating, "boolean": pa.types.is_boolean}

_SERIES = {"event_id": pa.int64(), "batch_id": pa.int32(), "azimuth": pa.float64(), "zenith": pa.float64()}
_STEP = {"time": pa.int32(), "charge": pa.float32(), "sensor_id": pa.int16(), "auxiliary": pa.bool_()}
_SCHEMA = pa.schema({**_SERIES, **{name: pa.large_list(kind) for name, kind in _STEP.items()}})


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
        progress: Called with the phase, the share of it that is done (0 to 1), and the events so far.

    Returns:
        The store, opened.

    Raises:
        SourceNotFoundError: A file is missing.
        SchemaError: A file has other columns.
        BadValueError: An event is broken. The message names the file, the event and the row.

    Example:
        >>> import tempfile
        >>> from stoker_recipes.icecube import make_events
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = pack_events(make_events(f"{folder}/icecube", files=2, events=10), f"{folder}/ice.stoker")
        ...     len(store), store.column("batch_id")[[0, -1]].tolist(), list(store.schema)
        (20, [1, 2], ['event_id', 'batch_id', 'azimuth', 'zenith', 'time', 'charge', 'sensor_id', 'auxiliary'])
    """
    folder, target = disk.check_path(source), disk.check_path(path)
    if split not in ("train", "test"):
        raise OptionError.expected("split", split, "'train' or 'test'")
    geometry = folder / GEOMETRY_NAME
    if not geometry.is_file():
        raise SourceNotFoundError(f"{geometry} is missing; expected the folder of the competition with {_layout(split)}.")
    read_geometry(geometry)
    sources = _event_sources(folder, split, _parse_batches(batches))
    packer = Packer(sources, target, PackOptions(series="event_id", threads=parse_threads(None)), progress)
    return packer.run(replace=replace, beside={GEOMETRY_NAME: geometry.read_bytes()})


def _layout(split: str) -> str:
    return f"{split}_meta.parquet, {split}/batch_*.parquet and {GEOMETRY_NAME}"


# What there is to read: everything but the values is checked.


def _parse_batches(batches: str | None) -> tuple[int, int] | None:
    if batches is None:
        return None
    matched = re.fullmatch(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?", str(batches))
    first, last = (int(matched[1]), int(matched[2] or matched[1])) if matched else (1, 0)
    if first > last:
        raise OptionError.expected("batches", batches, "the number of a file like '651', or a range like '1-650'")
    return first, last


def _event_sources(folder: Path, split: str, chosen: tuple[int, int] | None) -> list[DataSource]:
    """Find all files, and compare their schemas and the batches that the metadata name with them."""
    single, parts = folder / f"{split}_meta.parquet", folder / f"{split}_meta"
    numbered = _numbered(folder / split)
    if not numbered:
        raise SourceNotFoundError(f"{folder / split} has no batch_*.parquet; expected {_layout(split)}.")
    if single.is_file():
        files = [single]
    elif several := _numbered(parts):
        files = [path for number, path in several.items() if chosen is None or chosen[0] <= number <= chosen[1]]
    else:
        raise SourceNotFoundError(f"{single} is missing, and so is {parts}/batch_*.parquet; expected {_layout(split)}.")
    meta = _Metadata(_sources(files), is_train=split == "train")
    counts = {number: count for number, count in meta.count().items() if chosen is None or chosen[0] <= number <= chosen[1]}
    if not counts:
        what = "no event" if chosen is None else f"no event of the batches {chosen[0]} to {chosen[1]}"
        raise SourceEmptyError(f"{files[0] if files else parts} has {what}, so there is nothing to pack.")
    for number, events in counts.items():
        if number not in numbered:
            raise SourceNotFoundError(
                f"{folder / split / f'batch_{number}.parquet'} is missing, but the metadata name {events:,} events of it. Fetch the file, "
                f"or choose others with batches=."
            )
    pulses = _sources([numbered[number] for number in counts])
    for source in pulses:
        _check_schema(source, _PULSES)
    return [_EventSource(source, number, meta) for number, source in zip(counts, pulses, strict=True)]


def _numbered(folder: Path) -> dict[int, Path]:
    """The files batch_<number>.parquet of a folder by their number."""
    names = {path: re.fullmatch(r"batch_(\d{1,9})\.parquet", path.name) for path in folder.iterdir()} if folder.is_dir() else {}
    return dict(sorted((int(name[1]), path) for path, name in names.items() if name))


def _sources(paths: list[Path]) -> list[DataSource]:
    return find_sources(paths, table=True) if paths else []


def _check_schema(source: DataSource, expected: dict[str, str]) -> None:
    schema = source.schema()
    for name, kind in expected.items():
        if schema.get_field_index(name) < 0:
            raise SchemaError(
                f"{source.label} has no column {name!r}; it has {', '.join(schema.names)}. Expected {', '.join(expected)}."
            )
        if not _IS[kind](schema.field(name).type):
            article = "an" if kind == "integer" else "a"
            raise SchemaError(f"{source.label}: column {name!r} is {schema.field(name).type}; expected {article} {kind} type.")


def _columns(source: DataSource, table: pa.Table, row: int) -> dict[str, pa.Array]:
    """The columns of a part that begins at `row`, without missing values."""
    columns = {name: one_array(table.column(name)) for name in table.column_names}
    for name, values in columns.items():
        if values.null_count:
            at = row + int(np.flatnonzero(~np.asarray(values.is_valid()))[0])
            raise BadValueError(f"{source.label}, row {at:,}: {name} is missing; expected a value in every row.")
    return columns


# Metadata: the events of one file at a time.


@dataclass(frozen=True, kw_only=True)
class _Events:
    """The events of one file, in the order of its pulses."""

    ids: Array
    ends: Array
    """The row after the last pulse of each event."""
    angles: dict[str, Array]


class _Metadata:
    """The rows of the metadata, sorted by file. Those of one file are held at a time."""

    def __init__(self, sources: list[DataSource], *, is_train: bool) -> None:
        self.sources = sources
        has_labels = all(set(_LABELS) <= set(source.schema().names) for source in sources)
        self._names = {**_META, **(_LABELS if has_labels else {})}
        for source in sources:
            _check_schema(source, self._names)
        if is_train and not has_labels:
            raise SchemaError(
                f"{sources[0].label} has no columns azimuth and zenith, which training needs. For test files, pass split='test'."
            )
        self._files: Iterator[tuple[int, dict[str, Array]]] = iter(())

    def count(self) -> dict[int, int]:
        """The number of events of each file, in the order of the metadata."""
        counts: dict[int, int] = {}
        for number, rows in self._parts(["batch_id"]):
            counts[number] = counts.get(number, 0) + len(rows["batch_id"])
        return counts

    def events_of(self, number: int, source: DataSource) -> _Events:
        """The events of a file. Asked for in the order of the files, all are read once."""
        for _ in range(2):
            for at, rows in self._files:
                if at == number:
                    return _checked_events(source, rows)
            self._files = self._by_file()
        raise SourceChangedError(f"the metadata changed while {source.label} was packed: they do not name it any more.")

    def _by_file(self) -> Iterator[tuple[int, dict[str, Array]]]:
        for number, group in itertools.groupby(self._parts(list(self._names)), key=lambda part: part[0]):
            tables = [rows for _, rows in group]
            yield number, {name: np.concatenate([rows[name] for rows in tables]) for name in tables[0]}

    def _parts(self, names: list[str]) -> Iterator[tuple[int, dict[str, Array]]]:
        """Neighbouring rows of one file, and its number."""
        last = -1
        for source in self.sources:
            schema = pa.schema([source.schema().field(name) for name in names])
            for task in source.read(schema, start=RowLocation(), chunk_bytes=_META_ROWS * 8 * len(names)):
                chunk = task()
                table = {name: to_numpy(values) for name, values in _columns(source, chunk.table, chunk.begin.row).items()}
                numbers = table["batch_id"]
                if len(falls := np.flatnonzero(np.diff(numbers, prepend=last) < 0)):
                    at = int(falls[0])
                    raise BadValueError(
                        f"{source.label}, row {chunk.begin.row + at:,}: batch_id {numbers[at]} comes after "
                        f"{numbers[at - 1] if at else last}; expected rows sorted by batch_id."
                    )
                last = int(numbers[-1])
                starts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist()]
                for start, stop in zip(starts, [*starts[1:], len(numbers)], strict=True):
                    yield int(numbers[start]), {name: values[start:stop] for name, values in table.items()}


def _checked_events(source: DataSource, rows: dict[str, Array]) -> _Events:
    """The events of a file; their pulses must follow each other without gaps. Without directions, these are NaN."""
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
    if ends[-1] != source.num_positions:
        raise BadValueError(
            f"{source.label} has {source.num_positions:,} rows, but its last event, {ids[-1]}, ends at row {ends[-1] - 1:,} according to "
            f"the metadata. Fetch the file again."
        )
    angles = {name: rows[name].astype(np.float64) for name in _LABELS if name in rows}
    for name, values in angles.items():
        most = _MOST_ANGLE[name]
        if len(bad := np.flatnonzero(~((values >= 0) & (values < most + 1e-6)))):
            raise BadValueError(
                f"{source.label}: event {ids[bad[0]]} has the {name} {values[bad[0]]}; expected radians from 0 to {most:.4f}."
            )
    numbers, counts = np.unique(ids, return_counts=True)
    if len(numbers) < len(ids):
        raise BadValueError(
            f"{source.label}: event_id {numbers[counts > 1][0]} is that of two events according to the metadata; expected each once."
        )
    angles = angles or dict.fromkeys(_LABELS, np.full(len(ids), np.nan))
    return _Events(ids=ids.astype(np.int64), ends=ends.astype(np.int64), angles=angles)


# Pulses.


class _EventSource(WrappedSource):
    """A file of pulses as a source of events: one per row, with lists of its pulses. A position is a number of pulses."""

    def __init__(self, pulses: DataSource, number: int, meta: _Metadata) -> None:
        super().__init__(pulses)
        self._number, self._meta = number, meta
        self.depends_on = [source.path for source in meta.sources if source.path is not None]

    def schema(self) -> pa.Schema:
        return _SCHEMA

    @property
    def label(self) -> str:
        """Its rows are not those of the file."""
        return f"the events of {self._inner.label}"

    def origins(self, num_rows: int) -> list[tuple[DataSource, int]]:
        """The manifest counts pulses."""
        return [(self, self.num_positions or 0)]

    def read(self, schema: pa.Schema | None, *, start: RowLocation, chunk_bytes: int) -> Iterator[Task]:
        events = self._meta.events_of(self._number, self._inner)
        row, done, waiting = start.row, start.position, list[pa.Table]()
        pulses = pa.schema([self._inner.schema().field(name) for name in _PULSES])
        for task in self._inner.read(pulses, start=RowLocation(done, done), chunk_bytes=chunk_bytes):
            chunk = task()
            first, table = chunk.begin.row, chunk.table
            end = int(np.searchsorted(events.ends, first + table.num_rows, side="right"))
            if end == row:
                waiting.append(table)
                continue
            pulse = int(events.ends[end - 1])
            waiting.append(table.slice(0, pulse - first))
            yield partial(self._chunk, events, waiting, RowLocation(row, done), RowLocation(end, pulse), schema or _SCHEMA)
            # The pulses of the event that ends in a later part.
            row, done, waiting = end, pulse, [table.slice(pulse - first)]

    def _chunk(self, events: _Events, parts: list[pa.Table], begin: RowLocation, end: RowLocation, schema: pa.Schema) -> Chunk:
        """Whole events, whose pulses lie in some parts of the file."""
        count = end.position - begin.position
        room = {name: np.empty(count, kind.to_pandas_dtype()) for name, kind in _STEP.items() if name != "auxiliary"}
        flags, row = [], begin.position
        for part in parts:
            columns = _columns(self._inner, part, row)
            flags.append(columns.pop("auxiliary"))
            span = slice(row - begin.position, row - begin.position + part.num_rows)
            _convert_pulses(self._inner, columns, events, row, {name: values[span] for name, values in room.items()})
            row += part.num_rows
        offsets = from_numpy(np.concatenate([[begin.position], events.ends[begin.row : end.row]]) - begin.position)
        pulses = {name: from_numpy(values) for name, values in room.items()} | {"auxiliary": pa.concat_arrays(flags)}
        rows = slice(begin.row, end.row)
        table = {name: from_numpy(values[rows]) for name, values in {"event_id": events.ids, **events.angles}.items()}
        table["batch_id"] = from_numpy(np.full(end.row - begin.row, self._number, np.int32))
        table |= {name: pa.LargeListArray.from_arrays(offsets, values) for name, values in pulses.items()}
        return Chunk(pa.table({name: table[name] for name in schema.names}), begin, end)


_TIMES = np.iinfo(np.int32)


def _convert_pulses(source: DataSource, arrays: dict[str, pa.Array], events: _Events, row: int, room: dict[str, Array]) -> None:
    """Write pulses into `room` as the store holds them, each compared with the event that the metadata give its row to."""
    columns = {name: to_numpy(values) for name, values in arrays.items()}
    sensor, time, charge, owner = (columns[name] for name in ("sensor_id", "time", "charge", "event_id"))
    if not len(time):
        return
    if charge.dtype == np.float16:
        charge = charge.astype(np.float32)  # compiled kernels cannot read it
    rows = slice(np.searchsorted(events.ends, row, side="right"), np.searchsorted(events.ends, row + len(time)) + 1)
    is_good = _is_of_events(owner, events.ids[rows], events.ends[rows] - row)
    if _narrow(time, charge, sensor, room["time"], room["charge"], room["sensor_id"], room["charge"].view(np.int32)) and is_good:
        return
    event = events.ids[np.searchsorted(events.ends, np.arange(row, row + len(time)), side="right")]
    checks = (
        ("event_id", owner != event, "that of its event, as the metadata say"),
        ("sensor_id", (sensor < 0) | (sensor >= NUM_SENSORS), f"a number from 0 to {NUM_SENSORS - 1}"),
        ("time", (time < _TIMES.min) | (time > _TIMES.max), "nanoseconds that fit into 32 bits"),
        ("charge", ~np.isfinite(room["charge"]), "a finite float32"),
    )
    places = [(int(bad.argmax()), name, expected) for name, bad, expected in checks if bad.any()]
    at, name, expected = min(places, key=lambda place: place[0])
    raise BadValueError(f"{source.label}, event {event[at]}, row {row + at:,}: {name} is {columns[name][at]}; expected {expected}.")


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
def _is_of_events(owner: Array, ids: Array, ends: Array) -> bool:
    """Whether all pulses have the number of the event that they lie in."""
    pulse, event = 0, 0
    while pulse < len(owner):
        stop, number, wrong = min(ends[event], len(owner)), ids[event], np.int64(0)
        for i in range(pulse, stop):
            wrong |= np.int64(owner[i]) ^ number
        if wrong != 0:
            return False
        pulse, event = stop, event + 1
    return True


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
