"""What all readers share: every row arrives, reading continues behind any chunk, and a file that is none is named in one line."""

from __future__ import annotations

import gzip
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import zstandard
from tests.store.formats.reading import archive, assert_projects, assert_resumes, assert_threads_agree, saved, table_of
from tests.store.shrink import shrunk

from stoker import Csv
from stoker.errors import BadValueError, SourceEmptyError, SourceInvalidError, SourceTooLargeError
from stoker.store import DataSource, find_sources
from stoker.store.formats.arrow import ArrowSource, HuggingFaceSource
from stoker.store.formats.base import decoding
from stoker.store.formats.csv import CsvSource
from stoker.store.formats.discover import table_source
from stoker.store.formats.jsonl import JsonLinesSource
from stoker.store.formats.numpy import NpySource, NpzSource
from stoker.store.formats.parquet import ParquetSource
from stoker.store.formats.ucr import AeonSource, UcrSource

Rows = list[dict[str, Any]]

TABLE = pa.table(
    {
        "k": pa.array([f"key {i // 9}" for i in range(60)]).dictionary_encode(),
        "x": [None if i % 5 == 0 else i / 3 for i in range(60)],
        "l": pa.array([list(map(float, range(i % 4))) if i % 6 else None for i in range(60)], pa.list_(pa.float64())),
    }
)
MATRIX = np.random.default_rng(0).normal(size=(50, 3))
STREAM = pa.concat_tables([pa.table({"x": np.arange(40.0), "w": ["a"] * 40}).slice(3, 17), pa.table({"x": [0.5], "w": ["b"]})])


def arrow(path: Path, kind: str, batch: int) -> tuple[DataSource, Rows]:
    columns = ["k", "x"] if kind == "feather" else ["x", "l"]
    table = TABLE.select(columns)
    if kind == "feather":
        pa.feather.write_feather(table, path / "a.arrow", chunksize=batch, compression="lz4")
    else:
        with (pa.ipc.new_file if kind == "file" else pa.ipc.new_stream)(path / "a.arrow", table.schema) as writer:
            writer.write_table(table, max_chunksize=batch)
    return ArrowSource(path / "a.arrow", "a.arrow"), table.to_pylist()


def hugging_face(path: Path) -> tuple[DataSource, Rows]:
    """What `save_to_disk` of `datasets` writes."""
    with pa.ipc.new_stream(path / "a.arrow", (table := TABLE.select(["x", "l"])).schema) as stream:
        stream.write_table(table, max_chunksize=7)
    (path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "a.arrow"}], "_split": None}))
    return HuggingFaceSource(path, "set"), table.to_pylist()


def parquet(path: Path, group: int) -> tuple[DataSource, Rows]:
    pq.write_table(TABLE, path / "a.parquet", row_group_size=group)
    return ParquetSource(path / "a.parquet", "a.parquet"), TABLE.to_pylist()


def csv(path: Path) -> tuple[DataSource, Rows]:
    (path / "a.csv").write_text("k,t,x\n" + "".join(f'{i},"a\n{i}",{i / 7}\n' + "\n" * (i % 3) for i in range(60)))
    return CsvSource(path / "a.csv", "a.csv", Csv()), [{"k": i, "t": f"a\n{i}", "x": i / 7} for i in range(60)]


def compressed_csv(path: Path, compress: Callable[[bytes], bytes]) -> tuple[DataSource, Rows]:
    text = "é,x\n".encode("utf-16") + "".join(f"ö{i},{i}\n" for i in range(50)).encode("utf-16-le")
    (path / "a.csv").write_bytes(compress(text))
    return CsvSource(path / "a.csv", "a.csv", Csv()), [{"é": f"ö{i}", "x": i} for i in range(50)]


def json_lines(path: Path, compress: Callable[[bytes], bytes]) -> tuple[DataSource, Rows]:
    rows = [{"i": i, "x": [i / 7] * (i % 5), "t": "ü" * (i % 9)} for i in range(60)]
    lines = [json.dumps(row) for row in rows]
    lines[7:7] = ["", "   "]
    (path / "a.jsonl").write_bytes(compress("\n".join(lines).encode()))
    return JsonLinesSource(path / "a.jsonl", "a.jsonl"), rows


def npy(path: Path, array: Any, *, wide: bool = False) -> tuple[DataSource, Rows]:
    np.save(path / "a.npy", array)
    rows = [{f"c{i}": value for i, value in enumerate(row)} if wide else {"value": row} for row in array.tolist()]
    return NpySource(path / "a.npy", "a.npy", wide=wide), rows


def npz(path: Path, order: Any, save: Callable[..., None]) -> tuple[DataSource, Rows]:
    save(path / "a.npz", x=np.asarray(MATRIX, order=order), é=np.arange(50, dtype=">i2"))
    return NpzSource(path / "a.npz", "a.npz"), [{"x": row, "é": i} for i, row in enumerate(MATRIX.tolist())]


def ucr(path: Path) -> tuple[DataSource, Rows]:
    lines = [f"{i % 3}\t{i / 8}\t{-i}\t{'NaN' if i % 5 else i}" for i in range(60)]
    (path / "a.tsv").write_text("\n".join(lines))
    values = [[i / 8, -i, *([] if i % 5 else [i])] for i in range(60)]
    return UcrSource(path / "a.tsv", "a.tsv"), [
        {"value": list(map(float, row)), "label": f"{i % 3}"} for i, row in enumerate(values)
    ]


UNIVARIATE = "@problemName Toy\n@univariate true\n@equalLength true\n@seriesLength 3\n@classLabel true a b\n@data\n"


def aeon(path: Path) -> tuple[DataSource, Rows]:
    (path / "a.ts").write_text(UNIVARIATE + "".join(f"{i},{i / 8},{-i}:{'ab'[i % 2]}\n" for i in range(40)))
    rows = [{"value": [float(i), i / 8, float(-i)], "label": "ab"[i % 2]} for i in range(40)]
    return AeonSource(path / "a.ts", "a.ts"), rows


READERS: dict[str, tuple[int, Callable[[Path], tuple[DataSource, Rows]]]] = {
    **{
        f"{kind} of {n}": (200, lambda path, kind=kind, n=n: arrow(path, kind, n))
        for kind in ("file", "stream")
        for n in (1, 7, 1000)
    },
    "feather": (50, lambda path: arrow(path, "feather", 7)),
    "hugging face": (100, hugging_face),
    **{f"parquet in groups of {n}": (64, lambda path, n=n: parquet(path, n)) for n in (1, 13, 100)},
    "csv": (64, csv),
    "csv.gz": (64, lambda path: compressed_csv(path, gzip.compress)),
    "csv.zst": (64, lambda path: compressed_csv(path, zstandard.ZstdCompressor().compress)),
    "jsonl": (300, lambda path: json_lines(path, bytes)),
    "jsonl.gz": (300, lambda path: json_lines(path, gzip.compress)),
    "npy of steps": (100, lambda path: npy(path, np.arange(100.0))),
    "npy of series": (100, lambda path: npy(path, np.arange(100.0).reshape(20, 5))),
    "npy by columns": (100, lambda path: npy(path, np.asfortranarray(np.arange(100.0).reshape(20, 5)))),
    "npy, wide": (100, lambda path: npy(path, np.arange(60).reshape(20, 3), wide=True)),
    "npy by columns, wide": (100, lambda path: npy(path, np.asfortranarray(np.arange(60).reshape(20, 3)), wide=True)),
    **{f"npz {order}": (200, lambda path, order=order: npz(path, order, np.savez)) for order in "CF"},
    **{f"npz {order}, deflated": (200, lambda path, order=order: npz(path, order, np.savez_compressed)) for order in "CF"},
    "ucr": (300, ucr),
    "aeon": (500, aeon),
    "a table in memory": (64, lambda path: (table_source(STREAM), STREAM.to_pylist())),
}


@pytest.mark.parametrize("name", READERS)
def test_all_rows_arrive_and_reading_continues_behind_every_chunk(tmp_path: Path, name: str) -> None:
    chunk_bytes, make = READERS[name]
    source, rows = make(tmp_path)
    with shrunk():
        assert repr(table_of(source, chunk_bytes=chunk_bytes).to_pylist()) == repr(rows)
        assert_resumes(source, chunk_bytes=chunk_bytes, least=4)
        assert_threads_agree(source, chunk_bytes=chunk_bytes)
        assert_projects(source)


# Files that are not what their name says


def header(text: str, version: tuple[int, int] = (1, 0), length: int | None = None) -> bytes:
    size = len(text) if length is None else length
    return b"\x93NUMPY" + bytes(version) + size.to_bytes(2 if version == (1, 0) else 4, "little") + text.encode("latin1")


def of_shape(shape: str, descr: str = "'<f8'") -> bytes:
    return header(f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}\n")


def flipped(data: bytes, part: bytes) -> bytes:
    at = data.index(part)
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


FOUR = saved(np.arange(4.0))
BOMB = archive(("x.npy", saved(np.zeros(4)) + bytes(50_000_000)), method=zipfile.ZIP_DEFLATED)
ARFF = "@relation toy\n@attribute att1 numeric\n@attribute att2 numeric\n@attribute target {0,1}\n@data\n"
RELATION = "@relation toy\n@attribute bag relational\n@attribute a numeric\n@attribute b numeric\n@end bag\n@attribute class {x,y}\n@data\n"

ODD: dict[str, list[tuple[bytes | str, type[Exception], str]]] = {
    "a.arrow": [
        *((content, SourceInvalidError, "Arrow|Feather") for content in (b"A", b"ARROW1", b"ARROW1\0\0", b"text, not Arrow")),
        *((content, SourceInvalidError, "Arrow|Feather") for content in (b"\xff" * 4 + bytes(50), b"FEA1" + bytes(100) + b"FEA1")),
    ],
    "a.parquet": [
        (content, SourceInvalidError, "not Parquet") for content in (b"not parquet at all", b"PAR1" + bytes(100) + b"PAR1")
    ],
    "a.jsonl": [
        (b"", SourceEmptyError, "is empty"),
        (b"\n \r\n", SourceEmptyError, "blank lines"),
        (gzip.compress(b"", mtime=0), SourceEmptyError, "blank lines"),
        (b"{}\n{}\n", SourceEmptyError, "only empty objects"),
        (b"null\n", SourceInvalidError, "row 1 .* found null"),
        (b'{"a": 1}\nnull\n', SourceInvalidError, "row 2 .* found null"),
        (b'{"a": 1}\n[1]\n', SourceInvalidError, "row 2 .* found a list"),
        (b'[1]\n{"a": 1}\n', BadValueError, "in row 2"),
        (b"a,b\n1,2\n", SourceInvalidError, "row 1 .* It begins with 'a,b'"),
        (b'{"a": 1}\n{"a": \n', SourceInvalidError, "row 2"),
        (b"PAR1\x15\x04\x15\x10", SourceInvalidError, "row 1"),
        (gzip.compress(b'{"a": 1}\n' * 1000, mtime=0)[:-20], SourceInvalidError, "cannot be decompressed"),
    ],
    "a.npy": [
        (b"", SourceEmptyError, "is empty"),
        (b"\x93NUMPY", SourceInvalidError, "is not a"),
        (b"a,b\n1,2\n", SourceInvalidError, "it begins with b'a,b"),
        (header("{}", (9, 0)), SourceInvalidError, "version 9.0"),
        (header("{}", length=60000)[:40], SourceInvalidError, "ends inside its header"),
        (header("{}", (2, 0), length=2**31), SourceInvalidError, "declares a header of"),
        (header("{}"), SourceInvalidError, "damaged .npy header"),
        (header("__import__('os').getcwd()\n"), SourceInvalidError, "damaged .npy header"),
        (of_shape("(-1,)"), SourceInvalidError, "shape"),
        (of_shape(f"({2**70},)"), SourceInvalidError, "cut off"),
        (of_shape(f"({10**18}, 0)"), SourceEmptyError, "holds no value"),
        (of_shape("(1,)", "('<f8', (2,))"), SourceInvalidError, "expected"),
        (FOUR[:-1], SourceInvalidError, "is cut off: 159 bytes found, 160 expected"),
        (FOUR + b"x", SourceInvalidError, "longer than declared: 161 bytes found, 160 expected"),
        (saved(np.array([True]))[:-1] + b"\x02", BadValueError, "neither 0 nor 1"),
        (saved(np.array(["a"])), SourceInvalidError, "strings"),
        (saved(np.array([1j])), SourceInvalidError, "complex"),
        (saved(np.zeros(1, dtype=[("a", "<f4")])), SourceInvalidError, "records"),
        (saved(np.zeros(1, dtype=np.longdouble)), SourceInvalidError, "values that are not plain numbers"),
        (saved(np.array(["2020"], dtype="M8[D]")), SourceInvalidError, "s, ms, us or ns"),
        (saved(np.float64(1.5)), SourceInvalidError, "0 axes"),
        (saved(np.zeros((1, 1, 1))), SourceInvalidError, "3 axes"),
    ],
    "a.npz": [
        (b"", SourceEmptyError, "is empty"),
        (b"PK\x05\x06" + bytes(18), SourceEmptyError, "holds no array"),
        (b"not a zip", SourceInvalidError, "not a .npz archive"),
        (archive(("x.npy", FOUR))[:-30], SourceInvalidError, "not a .npz archive"),
        (flipped(archive(("x.npy", FOUR)), np.float64(3.0).tobytes()), SourceInvalidError, "CRC"),
        (BOMB, SourceInvalidError, "longer than declared: 50,000,160 bytes found, 160 expected"),
        (archive(("x.npy", FOUR[:-8])), SourceInvalidError, "'x.npy' in .* is cut off: 152 bytes found, 160 expected"),
        (archive(("x.npy", FOUR), ("y.npy", saved(np.arange(5.0)))), SourceInvalidError, r"different first axes: x \(4,\), y"),
        (archive(("x.npy", FOUR), ("readme.txt", b"hello")), SourceInvalidError, "'readme.txt' in .* is not a plain or deflated"),
        (archive(("x.npy", FOUR), method=zipfile.ZIP_LZMA), SourceInvalidError, "not a plain or deflated"),
        (archive(("x.npy", saved(np.array(["a"])))), SourceInvalidError, "strings"),
        (archive(("x.npy", b"")), SourceInvalidError, "'x.npy' in .* is not a .npy file"),
    ],
    "a_TRAIN.tsv": [
        ("1\t2\t3\n1\t2\n", SourceInvalidError, "line 2 .* 2 fields found, 3 expected"),
        ("1\t2\t3\n\t2\t3\n", SourceInvalidError, "line 2 .* the label is empty"),
        ("1\t2\t3\n\n1\tx\t3\n", SourceInvalidError, "line 3 .* 'x' is not numeric"),
        ("1\t2\t3\n1\t1,5\t3\n", SourceInvalidError, "line 2 .* '1,5' is not numeric"),
        (b"1\t2\t3\n\xff\t2\t3\n", SourceInvalidError, "line 2"),
        ("1\t2\n1\t9007199254740993\n", SourceInvalidError, "line 2 .* cannot hold exactly"),
    ],
    "a.ts": [
        ("", SourceEmptyError, "is empty"),
        (UNIVARIATE, SourceEmptyError, "holds no series"),
        ("@univariate maybe\n@univariate\n@data\n1:a\n", SourceInvalidError, "tag requires a boolean"),
        (UNIVARIATE + "1,2,3:a\n1,x,3:a\n", SourceInvalidError, "could not convert string to float"),
        (UNIVARIATE + "1,2,3:a\n1,2:a\n", SourceInvalidError, "different number of observations"),
        (b"@classLabel true a\n@data\n1:\xff\n", SourceInvalidError, "codec can't decode"),
        ("@timeStamps true\n@classLabel false\n@data\n(0,-1.5),(1,2.5)\n", SourceInvalidError, "has time stamps"),
    ],
    "a.arff": [
        (ARFF + "1,x,0\n", SourceInvalidError, "could not convert string to float"),
        (RELATION + "'1,2\\n3,4',x\n'1,2',x\n", SourceInvalidError, "Number of channels not equal"),
    ],
}


CASES = [pytest.param(name, *file, id=f"{name} {number}") for name, files in ODD.items() for number, file in enumerate(files)]
"""Numbered, as some contents hold the time they were made at."""


@pytest.mark.parametrize(("name", "content", "error", "words"), CASES)
def test_a_file_that_is_not_what_its_name_says_is_named(
    tmp_path: Path, name: str, content: bytes | str, error: type[Exception], words: str
) -> None:
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(error, match=words) as caught:
        table_of(find_sources(tmp_path / name)[0])
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_decoder_that_runs_out_of_memory_names_the_file() -> None:
    with pytest.raises(SourceTooLargeError, match=r"a\.arrow"), decoding(Path("a.arrow"), "Arrow IPC"):
        raise MemoryError


@pytest.mark.parametrize("raised", [SourceEmptyError("empty"), ZeroDivisionError()])
def test_negative_control_other_errors_pass_a_decoder_unchanged(raised: Exception) -> None:
    with pytest.raises(type(raised)) as caught, decoding(Path("a.arrow"), "Arrow IPC"):
        raise raised
    assert caught.value is raised
