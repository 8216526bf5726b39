"""Text: decompressed and decoded as its first bytes say, and cut only where a line really ends."""

from __future__ import annotations

import bz2
import codecs
import csv
import gc
import gzip
import io
import lzma
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import zstandard
from hypothesis import given

from stoker.errors import OptionError, SourceInvalidError, SourceTooLargeError
from stoker.store.formats import text as texts
from stoker.store.formats.jsonl import JsonLinesSource
from stoker.store.formats.text import Readable, line_blocks, open_text

LINES = b"".join(b"%d,%d\n" % (i, i * i) for i in range(300))
COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstandard.ZstdCompressor().compress,
}
MAGIC_BYTES = {"gz": 2, "bz2": 3, "xz": 6, "zst": 4}


def read_all(file: Readable, step: int = 1000) -> bytes:
    return b"".join(iter(lambda: file.read(step), b""))


def decoded(folder: Path, content: bytes, encoding: str = "utf-8", step: int = 1000) -> bytes:
    (folder / "file").write_bytes(content)
    return read_all(open_text(folder / "file", encoding), step)


@pytest.mark.parametrize("kind", COMPRESSORS)
def test_compression_is_reported_by_the_content(tmp_path: Path, kind: str) -> None:
    packed = COMPRESSORS[kind](LINES)
    assert decoded(tmp_path, packed) == LINES
    assert JsonLinesSource(tmp_path / "file", "file").num_positions is None
    assert decoded(tmp_path, LINES) == LINES
    assert JsonLinesSource(tmp_path / "file", "file").num_positions == len(LINES)


@pytest.mark.parametrize("kind", COMPRESSORS)
def test_members_end_to_end_are_one_text(tmp_path: Path, kind: str) -> None:
    packed = COMPRESSORS[kind](LINES) + COMPRESSORS[kind](b"1,1\n")
    assert decoded(tmp_path, packed) == LINES + b"1,1\n"


@pytest.mark.parametrize("kind", COMPRESSORS)
def test_every_cut_of_a_compressed_file_is_found(tmp_path: Path, kind: str) -> None:
    packed = COMPRESSORS[kind](LINES)
    for length in range(MAGIC_BYTES[kind], len(packed)):
        with pytest.raises(SourceInvalidError, match=r"file cannot be decompressed: .*Fetch or make the file again"):
            decoded(tmp_path, packed[:length])


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
def test_damage_within_a_compressed_file_is_found(tmp_path: Path, kind: str) -> None:
    packed = bytearray(COMPRESSORS[kind](LINES))
    packed[len(packed) // 2] ^= 0xFF
    with pytest.raises(SourceInvalidError, match="cannot be decompressed"):
        decoded(tmp_path, bytes(packed))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "latin-1", "cp1252", "shift_jis"])
@pytest.mark.parametrize("step", [1, 7, 1000])
def test_other_encodings_become_utf8(tmp_path: Path, encoding: str, step: int) -> None:
    words = "märz,日本\n" if encoding.startswith(("utf", "shift")) else "märz,Größe\n"
    words = words.replace("ä", "a") if encoding == "shift_jis" else words
    assert decoded(tmp_path, (words * 50).encode(encoding), encoding, step) == (words * 50).encode()


@pytest.mark.parametrize("order", [codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE])
def test_utf32_is_known_by_its_mark(tmp_path: Path, order: bytes) -> None:
    encoding = "utf-32-le" if order == codecs.BOM_UTF32_LE else "utf-32-be"
    assert decoded(tmp_path, order + "é,1\n".encode(encoding)) == "é,1\n".encode()


@pytest.mark.parametrize("form", ["plain", *COMPRESSORS])
def test_a_reader_in_a_cycle_is_closed_without_a_warning(tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The garbage collector ends the objects of a cycle in any order: perhaps the file before the reader that would close it."""
    path = tmp_path / "a.csv"
    path.write_bytes(COMPRESSORS.get(form, bytes)(LINES))
    warned = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: warned.append(found.exc_value))

    def drop(file: Any) -> None:
        cycle = [file]
        cycle.append(cycle)  # type: ignore[arg-type]

    drop(open_text(path))
    gc.collect()
    assert warned == []
    drop([path.open("rb")])  # the control: a file that nothing closes
    gc.collect()
    assert [type(one) for one in warned] == [ResourceWarning]


def test_a_wrong_encoding_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceInvalidError, match=r"file is not utf-16.*Pass the right Csv.encoding="):
        decoded(tmp_path, b"\xff\xfe\x00\xd8\x00\x00", "utf-8")
    with pytest.raises(OptionError, match="'klingon' is not an encoding"):
        decoded(tmp_path, LINES, "klingon")


def cut(text: bytes, block_bytes: int, start: int = 0, quote: bytes = b'"', escape: bytes = b"") -> list[bytes]:
    blocks = list(
        line_blocks(io.BytesIO(text), start=start, block_bytes=block_bytes, path=Path("file"), quote=quote, escape=escape)
    )
    for block in blocks:
        assert text[block.begin : block.end] == block.data
    return [block.data for block in blocks]


@given(
    lines=st.lists(st.binary(max_size=30).map(lambda line: line.translate(None, b'\n"')), max_size=30),
    last=st.sampled_from([b"", b"\n"]),
    size=st.integers(1, 60),
)
def test_blocks_are_whole_lines_and_together_the_text(lines: list[bytes], last: bytes, size: int) -> None:
    text = b"\n".join(lines) + last
    blocks = cut(text, size)
    assert b"".join(blocks) == text
    assert all(block.endswith(b"\n") for block in blocks[:-1])


FIELD = st.text(alphabet='ab"\n,;ü ', max_size=6)


@given(
    rows=st.lists(st.tuples(FIELD, FIELD), min_size=1, max_size=20),
    size=st.integers(1, 40),
    end=st.sampled_from(["\n", "\r\n"]),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
)
def test_a_line_break_in_quotes_never_cuts(rows: list[tuple[str, str]], size: int, end: str, quoting: int) -> None:
    """Each block parsed alone gives the rows of the whole."""
    file = io.StringIO(newline="")
    csv.writer(file, lineterminator=end, quoting=quoting).writerows(rows)  # type: ignore[arg-type]
    parsed = [
        tuple(row)
        for block in cut(file.getvalue().encode(), size)
        for row in csv.reader(io.StringIO(block.decode(), newline=""), strict=True)
    ]
    assert parsed == rows


@given(rows=st.lists(st.tuples(st.text(alphabet='a"\n\\', max_size=6)), min_size=1, max_size=20), size=st.integers(1, 40))
def test_an_escaped_quote_is_not_a_quote(rows: list[tuple[str]], size: int) -> None:
    text = "".join('"' + field.replace("\\", "\\\\").replace('"', '\\"') + '"\n' for (field,) in rows)
    parsed = [
        tuple(row)
        for block in cut(text.encode(), size, escape=b"\\")
        for row in csv.reader(io.StringIO(block.decode(), newline=""), escapechar="\\", doublequote=False, strict=True)
    ]
    assert parsed == rows


def test_counting_escaped_quotes_would_cut_values() -> None:
    text = b'"a\\"b\nc"\n'
    assert cut(text, 1, escape=b"\\") == [text]
    assert cut(text, 1) != [text]


@given(st.integers(0, 299), st.integers(1, 500))
def test_reading_continues_from_any_line(line: int, size: int) -> None:
    start = sum(len(one) + 1 for one in LINES.split(b"\n")[:line])
    assert b"".join(cut(LINES, size, start)) == LINES[start:]


def test_a_line_beyond_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "MAX_LINE_BYTES", 1000)
    assert cut(b"x" * 900 + b"\n", 10)
    with pytest.raises(SourceTooLargeError, match=r"file has a line of more than 1.0 kB at byte 4\. Check the file"):
        cut(b"a,b\n" + b"x" * 5000 + b"\n", 10)
    with pytest.raises(SourceTooLargeError, match=r"or a quote that is never closed"):
        cut(b'a,"b\n' + b"x\n" * 5000, 10)
