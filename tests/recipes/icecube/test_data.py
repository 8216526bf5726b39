"""Packing the files of the competition: every value, every event once, and each kind of damage named by file and event."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.store.shrink import shrunk

import stoker
from stoker.errors import BadValueError, SchemaError
from stoker.store import RowLocation, Task
from stoker.store.pack.packer import Packer, PackState
from stoker_recipes.icecube import data as packing
from stoker_recipes.icecube import make_events, pack_events

Change = Callable[[pa.Table], pa.Table]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_events(tmp_path_factory.mktemp("icecube"), files=3, events=40)
    return make_events(folder, files=1, events=10, split="test")


@pytest.fixture
def files(made: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    folder = tmp_path / "icecube"
    shutil.copytree(made, folder)
    for path in folder.rglob("*.*"):
        path.chmod(0o644)
    return folder


def change(path: Path, function: Change) -> None:
    table = function(pq.read_table(path))
    pq.write_table(table, path)


def put(name: str, row: int, value: object) -> Change:
    """The table with another value in a row."""

    def changed(table: pa.Table) -> pa.Table:
        values = table.column(name).to_pylist()
        values[row] = value
        kind = table.schema.field(name).type
        return table.set_column(table.column_names.index(name), name, pa.array(values, kind))

    return changed


def check(store: stoker.Store, folder: Path, numbers: list[int], split: str = "train") -> None:
    meta = pq.read_table(folder / f"{split}_meta.parquet").to_pandas()
    meta = meta[meta.batch_id.isin(numbers)]
    assert len(store) == len(meta)
    assert store.column("event_id").tolist() == meta.event_id.tolist()
    assert store.column("batch_id").tolist() == meta.batch_id.tolist()
    for name in ("azimuth", "zenith"):
        assert np.array_equal(store.column(name), meta[name]) if name in meta else np.isnan(store.column(name)).all()
    assert store.lengths.tolist() == (meta.last_pulse_index - meta.first_pulse_index + 1).tolist()
    tables = [pq.read_table(folder / split / f"batch_{number}.parquet").to_pandas() for number in numbers]
    for name, kind in (("time", np.int32), ("charge", np.float32), ("sensor_id", np.int16), ("auxiliary", np.bool_)):
        assert store.column(name).dtype == kind
        assert np.array_equal(store.column(name), np.concatenate([table[name].to_numpy() for table in tables]).astype(kind))


@pytest.mark.promise("P29")
def test_all_values_arrive(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "_META_ROWS", 7)
    calls: list[tuple[float, int]] = []

    def note(phase: str, share: float, events: int) -> None:
        calls.extend([(share, events)] if phase == "reading" else [])

    with shrunk(chunk_bytes=20_000):  # events lie across several parts
        store = pack_events(made, tmp_path / "ice.stoker", progress=note)
    check(store, made, [1, 2, 3])
    assert calls == sorted(calls)
    assert calls[-1] == (1.0, 120)
    assert len(calls) > 10
    assert store.find(int(store.column("event_id")[50])) == 50
    stoker.verify(tmp_path / "ice.stoker")
    assert packing.geometry_of(store).read_bytes() == (made / "sensor_geometry.csv").read_bytes()


def test_other_widths_of_numbers_are_the_same_numbers(files: Path, tmp_path: Path) -> None:
    expected = pack_events(files, tmp_path / "a")

    def narrow(table: pa.Table) -> pa.Table:
        kinds = {
            "sensor_id": pa.int32(),
            "time": pa.int32(),
            "charge": pa.float32(),
            "auxiliary": pa.bool_(),
            "event_id": pa.int32(),
        }
        return table.select(list(kinds)).cast(pa.schema(kinds))

    change(files / "train" / "batch_2.parquet", narrow)
    store = pack_events(files, tmp_path / "b")
    for name in expected.schema:
        assert np.array_equal(store.column(name), expected.column(name))


@pytest.mark.promise("P29")
def test_events_are_sorted_whatever_file_they_are_in(files: Path, tmp_path: Path) -> None:
    expected = pack_events(files, tmp_path / "a")
    change(files / "train_meta.parquet", lambda table: table.set_column(1, "event_id", pa.array([*range(80, 120), *range(80)])))
    for number, first in ((1, 80), (2, 0), (3, 40)):
        ids = np.unique(pq.read_table(files / "train" / f"batch_{number}.parquet")["event_id"], return_inverse=True)[1] + first
        change(files / "train" / f"batch_{number}.parquet", lambda table, ids=ids: table.set_column(4, "event_id", pa.array(ids)))
    with shrunk(chunk_bytes=20_000, run_bytes=1 << 16):
        store = pack_events(files, tmp_path / "b")
    assert store.column("event_id").tolist() == [*range(120)]
    assert store.column("batch_id").tolist() == [2] * 40 + [3] * 40 + [1] * 40
    for event, before in ((0, 40), (79, 119), (80, 0)):
        assert all(
            np.array_equal(store[event][name], expected[before][name]) for name in ("time", "charge", "azimuth", "sensor_id")
        )


@pytest.mark.promise("P29")
@pytest.mark.parametrize("chunk_bytes", [8 << 20, 20_000])
def test_an_event_of_two_files_is_named(files: Path, tmp_path: Path, chunk_bytes: int) -> None:
    change(files / "train_meta.parquet", put("event_id", 85, 41))
    ids = pq.read_table(files / "train" / "batch_3.parquet")["event_id"].to_numpy()
    again = pa.array(np.where(ids == 85, 41, ids))
    change(files / "train" / "batch_3.parquet", lambda table: table.set_column(4, "event_id", again))
    with (
        shrunk(chunk_bytes=chunk_bytes),
        pytest.raises(
            BadValueError,
            match=r"event_id 41 occurs twice \(in row 2 of .*batch_2.parquet, and in row 6 of the events of .*batch_3.parquet",
        ),
    ):
        pack_events(files, tmp_path / "a")
    assert not (tmp_path / "a").exists()


BROKEN = {
    "a pulse of another event": (put("event_id", 3, 99), "event 40, row 3: event_id is 99; expected that of its event"),
    "a sensor that does not exist": (put("sensor_id", 5, 6000), "event 40, row 5: sensor_id is 6000; expected a number"),
    "a negative sensor": (put("sensor_id", 5, -1), "event 40, row 5: sensor_id is -1"),
    "a time that is too large": (put("time", 0, 2**31), "event 40, row 0: time is 2147483648; expected nanoseconds that fit"),
    "a charge that is NaN": (put("charge", 1, float("nan")), "event 40, row 1: charge is nan; expected a finite float32"),
    "a charge beyond float32": (put("charge", 1, 1e300), r"event 40, row 1: charge is 1e\+300; expected a finite float32"),
    "a missing value": (put("time", 2, None), "row 2: time is missing"),
    "a missing row": (lambda table: table.slice(0, len(table) - 1), "its last event, 79, ends at row"),
    "a row too many": (lambda table: pa.concat_tables([table, table.slice(0, 1)]), "its last event, 79, ends at row"),
}


@pytest.mark.promise("P29")
@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_event_is_named(files: Path, tmp_path: Path, kind: str) -> None:
    function, message = BROKEN[kind]
    change(files / "train" / "batch_2.parquet", function)
    with pytest.raises(BadValueError, match=f"batch_2.parquet.*{message}"):
        pack_events(files, tmp_path / "a")
    assert not (tmp_path / "a").exists()


BROKEN_META = {
    "an event without pulses": (put("last_pulse_index", 41, 0), r"batch_2.parquet: the metadata place event 41 at rows \d+ to 0"),
    "a gap": (put("first_pulse_index", 40, 1), r"batch_2.parquet: the metadata place event 40 at rows 1 to \d+; .* beginning at 0"),
    "an angle that is NaN": (
        put("zenith", 45, float("nan")),
        "batch_2.parquet: event 45 has the zenith nan; expected radians from 0",
    ),
    "an angle in degrees": (put("azimuth", 45, 270.0), "batch_2.parquet: event 45 has the azimuth 270.0; expected radians from 0"),
    "two events of one number": (put("event_id", 45, 44), "batch_2.parquet: event_id 44 is that of two events"),
    "files in disorder": (put("batch_id", 41, 3), "train_meta.parquet, row 42: batch_id 2 comes after 3; expected rows sorted"),
}


@pytest.mark.promise("P29")
@pytest.mark.parametrize("kind", BROKEN_META)
def test_broken_metadata_are_named(files: Path, tmp_path: Path, kind: str) -> None:
    function, message = BROKEN_META[kind]
    change(files / "train_meta.parquet", function)
    with pytest.raises(BadValueError, match=message):
        pack_events(files, tmp_path / "a")


def test_a_drifted_schema_is_named_before_anything_is_read(files: Path, tmp_path: Path) -> None:
    change(files / "train" / "batch_3.parquet", lambda table: table.rename_columns(["sensor", *table.column_names[1:]]))
    with pytest.raises(SchemaError, match=r"batch_3.parquet has no column 'sensor_id'; it has sensor, time"):
        pack_events(files, tmp_path / "a", progress=lambda *_: pytest.fail("read before all schemas were checked"))


class Killed(BaseException):
    """Like Ctrl-C: not an Exception."""


def kill_in(number: int, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Let the pack be killed in a file; returns the list of the files that are read, and the pulse where each begins."""
    read: list[tuple[int, int]] = []
    begin, after = packing._EventSource.read, Packer._after_block

    def noted(source: packing._EventSource, schema: pa.Schema, *, start: RowLocation, chunk_bytes: int) -> Iterator[Task]:
        read.append((source._number, start.position))
        return begin(source, schema, start=start, chunk_bytes=chunk_bytes)

    def killed(packer: Packer, state: PackState, num_bytes: int) -> None:
        after(packer, state, num_bytes)
        if state.source == number - 1:
            state.writer.drain()
            raise Killed

    monkeypatch.setattr(packing._EventSource, "read", noted)
    monkeypatch.setattr(Packer, "_after_block", killed)
    return read


@pytest.mark.promise("P29")
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_killed_pack_resumes_in_the_file_it_was_in(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    expected = pack_events(made, tmp_path / "whole").digest
    with shrunk(chunk_bytes=20_000, journal_bytes=0):
        with monkeypatch.context() as patch:
            kill_in(number, patch)
            with pytest.raises(Killed):
                pack_events(made, tmp_path / "a")
        read = kill_in(0, monkeypatch)
        store = pack_events(made, tmp_path / "a")
    assert store.digest == expected
    assert [file for file, _ in read] == list(range(number, 4))
    assert [pulse > 0 for _, pulse in read] == [True] + [False] * (3 - number)


@pytest.mark.promise("P29", control=True)
@pytest.mark.parametrize("damage", ["bytes", "source", "metadata"])
def test_changed_bytes_or_files_are_read_again(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    expected = pack_events(files, tmp_path / "whole").digest
    with shrunk(chunk_bytes=20_000, journal_bytes=0):
        with monkeypatch.context() as patch:
            kill_in(2, patch)
            with pytest.raises(Killed):
                pack_events(files, tmp_path / "a")
        if damage == "bytes":
            path = next((tmp_path / "a").glob("*/run0.c1"))
            data = bytearray(path.read_bytes())
            data[200] ^= 1
            path.write_bytes(data)
        else:
            change(files / ("train_meta.parquet" if damage == "metadata" else "train/batch_1.parquet"), lambda table: table)
        read = kill_in(0, monkeypatch)
        store = pack_events(files, tmp_path / "a")
    assert read == [(1, 0), (2, 0), (3, 0)]
    assert store.digest == expected if damage == "bytes" else len(store) == 120


def test_metadata_may_be_a_file_per_batch(files: Path, tmp_path: Path) -> None:
    meta = pq.read_table(files / "train_meta.parquet")
    (files / "train_meta").mkdir()
    for number in (1, 2, 3):
        pq.write_table(meta.filter(pa.compute.equal(meta["batch_id"], number)), files / "train_meta" / f"batch_{number}.parquet")
    (files / "train_meta.parquet").rename(tmp_path / "train_meta.parquet")
    store = pack_events(files, tmp_path / "a")
    (tmp_path / "train_meta.parquet").rename(files / "train_meta.parquet")
    check(store, files, [1, 2, 3])
    assert store.digest == pack_events(files, tmp_path / "b").digest


def test_events_of_a_file_may_be_listed_in_any_order(files: Path, tmp_path: Path) -> None:
    expected = pack_events(files, tmp_path / "a")
    change(files / "train_meta.parquet", lambda table: table.take([*range(39, -1, -1), *range(40, 120)]))
    assert pack_events(files, tmp_path / "b").digest == expected.digest
