"""Sources and stores that are no files at all, or that lie about their names: an error in one line, at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

import stoker
import stoker.store
from stoker.errors import OptionError, StokerError
from stoker.store.formats import arrow

TABLE = pa.table({"key": ["a", "b"], "x": [1.5, 2.5], "t": pa.array([1, 2], pa.timestamp("ns", "Europe/Berlin"))})
WRITERS: dict[str, Callable[[Path], Any]] = {
    ".feather": lambda path: pyarrow.feather.write_feather(TABLE, str(path), compression="uncompressed"),
    ".parquet": lambda path: pq.write_table(TABLE, path),
}


def flipped_everywhere(path: Path) -> list[str]:
    """Read a file with bit 7 of each byte flipped, one after the other; returns what was raised that is no error of ours."""
    whole, raw = path.read_bytes(), []
    for i in range(len(whole)):
        path.write_bytes(whole[:i] + bytes([whole[i] ^ 0x80]) + whole[i + 1 :])
        try:
            stoker.store.read_table(path)
        except StokerError:
            continue
        except Exception as error:
            raw.append(f"byte {i}: {type(error).__name__}")
    return raw


@pytest.mark.promise("P2")
@pytest.mark.parametrize("suffix", WRITERS)
def test_a_flipped_bit_in_a_schema_is_an_error_of_ours(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    WRITERS[suffix](path)
    assert flipped_everywhere(path) == []


@pytest.mark.promise("P2", control=True)
def test_negative_control_names_that_are_decoded_late_are_raw_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "decoded_schema", lambda schema: schema)
    path = tmp_path / "a.feather"
    WRITERS[".feather"](path)
    assert any("UnicodeDecodeError" in text for text in flipped_everywhere(path))


@pytest.mark.parametrize("call", [stoker.open, stoker.inspect, stoker.verify, stoker.compact])
@pytest.mark.parametrize("kind", ["loop", "manifest loop", "manifest in itself", "pipe", "surrogate", "null device"])
def test_a_store_that_is_none_is_an_error_of_ours(tmp_path: Path, call: Callable[[Any], Any], kind: str) -> None:
    path = tmp_path / "store"
    if kind == "loop":
        path.symlink_to(path)
    elif kind == "null device":
        path = Path("/dev/zero")
    else:
        path.mkdir()
        manifest = path / "manifest.json"
        if kind == "pipe":
            os.mkfifo(manifest)
        elif kind == "surrogate":
            manifest.write_text('{"format": "stoker", "columns": "\\ud800"}')
        else:
            manifest.symlink_to(manifest if kind == "manifest loop" else path)
    with pytest.raises(StokerError):
        call(path)


def test_a_target_that_is_a_loop_or_no_name(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for path in (loop, loop / "below", tmp_path / "a\ud800"):
        with pytest.raises(OptionError):
            stoker.pack({"x": [1.0]}, path)
    with pytest.raises(OptionError):
        stoker.Store.from_arrays(name=["\ud800"])


@pytest.mark.parametrize("source", ["a.csv", "a.parquet", "a.jsonl", "a.npy", "a.arrow", "/dev/zero", "link.csv"])
def test_a_source_without_an_end_is_refused_unread(tmp_path: Path, source: str) -> None:
    path = tmp_path / source
    if source == "link.csv":
        path.symlink_to("/dev/zero")
    elif source.startswith("a"):
        os.mkfifo(path)
    with pytest.raises(StokerError, match="is not a plain file"):
        stoker.pack(path, tmp_path / "out")


def test_a_statement_that_reads_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(OptionError, match="is not a plain file"):
        stoker.pack({"x": [1.0]}, tmp_path / "out", sql=f"SELECT * FROM source, '{tmp_path}/pipe.csv'")
