"""Text files, for all formats that are text.

    open_text      decompress and decode to UTF-8
    line_blocks    cut into blocks of whole lines

Positions are bytes of the decoded text, so reading can resume in the middle of a file, compressed or not. Compression is detected from
the first bytes, not from the name.
"""

from __future__ import annotations

import codecs
import io
import os
import re
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from stoker._text import readable_bytes
from stoker.errors import OptionError, SourceEmptyError, SourceInvalidError, SourceTooLargeError
from stoker.store.formats.base import FileSource

MAX_LINE_BYTES = 128 << 20
_LINES_BYTES = 8 << 20  # of a block in which lines are counted
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bz2", b"\xfd7zXZ\x00": "lzma"}
_MARKS = {  # UTF-32 first: its mark begins with that of UTF-16
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


class Readable(Protocol):
    """An open file. `read` returns at most `num_bytes`, and nothing only at the end."""

    def read(self, num_bytes: int, /) -> bytes: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Whole lines, and the positions before and after them."""

    data: bytes
    begin: int
    end: int


def open_text(path: Path, encoding: str = "utf-8") -> Readable:
    """Open a text file for reading as UTF-8 bytes without a byte order mark."""
    try:
        with path.open("rb") as file:
            start = file.read(8)
    except OSError as error:
        raise SourceInvalidError(f"{path} cannot be read: {os.strerror(error.errno or 0)}.") from error
    if not start:
        raise SourceEmptyError(f"{path} is empty (0 bytes). Remove it, or leave it out of the pattern.")
    kind = next((kind for magic, kind in _MAGIC.items() if start.startswith(magic)), None)
    is_local = isinstance(path, Path)
    if kind is None or kind == "zstd":
        # The garbage collector may end a file before the reader that would close it; one of Python would then warn.
        raw: Readable = pa.OSFile(os.fsencode(path)) if is_local else pa.PythonFile(path.open("rb"), mode="r")
        raw = pa.CompressedInputStream(raw, "zstd") if kind else raw  # raises an error if the last frame is cut
    else:
        raw = import_module(kind).open(path if is_local else path.open("rb"), "rb")
    try:
        return _Decoder(raw, path, encoding)
    except BaseException:
        raw.close()
        raise


class _Decoder:
    """Bytes of a file as UTF-8: other encodings are converted, damaged compression is an error that names the file."""

    def __init__(self, raw: Readable, path: Path, encoding: str) -> None:
        self._raw = raw
        self._path = path
        first = self._read(4)
        mark = next((mark for mark in _MARKS if first.startswith(mark)), b"")
        if mark == codecs.BOM_UTF8:
            first = first[len(mark) :]
        elif mark:
            encoding = _MARKS[mark]
        self._head = first
        self._rest = b""
        self._encoding = encoding
        try:
            io.TextIOWrapper(io.BytesIO(), encoding=encoding).close()
        except LookupError:
            raise OptionError(
                f"{encoding!r} is not an encoding; expected one like utf-8, latin-1 or utf-16.", parameter="encoding"
            ) from None
        plain = codecs.lookup(encoding).name in ("utf-8", "ascii")
        self._decoder = None if plain else codecs.getincrementaldecoder(encoding)()

    def _read(self, num_bytes: int) -> bytes:
        try:
            return self._raw.read(num_bytes)
        except Exception as error:  # OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, ...
            raise SourceInvalidError(f"{self._path} cannot be decompressed: {error}. Fetch or make the file again.") from error

    def read(self, num_bytes: int, /) -> bytes:
        # Never more than requested: a reader that skips to a position must end there.
        data = self._rest or self._decoded(num_bytes)
        self._rest = data[num_bytes:]
        return data[:num_bytes]

    def _decoded(self, num_bytes: int) -> bytes:
        """About `num_bytes` more; none only at the end."""
        while True:
            data, self._head = self._head or self._read(num_bytes), b""
            if self._decoder is None:
                return data
            try:
                text = self._decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                raise SourceInvalidError(
                    f"{self._path} is not {self._encoding}: {error.reason}. Pass the right Csv(encoding=).", parameter="encoding"
                ) from error
            if text or not data:
                return text.encode()

    def close(self) -> None:
        self._raw.close()

    def __del__(self) -> None:
        # Blocks are read by generators that may be dropped early: the file is closed with them.
        self.close()


def line_blocks(
    file: Readable,
    *,
    start: int,
    block_bytes: int,
    path: Path,
    quote: bytes = b"",
    escape: bytes = b"",
    max_line_bytes: int | None = None,
) -> Iterator[LineBlock]:
    """Cut a text into blocks of whole lines of about `block_bytes`, from position `start` (the start of a line) on.

    A line of more than `max_line_bytes` is an error. With `quote`, a line break between two quotes is part of a value; a quote after
    `escape` does not count.
    """
    left = start
    while left > 0:
        left -= len(file.read(min(left, 1 << 20)) or b"x" * left)
    most = min(max_line_bytes or MAX_LINE_BYTES, MAX_LINE_BYTES)
    position = start
    rest = b""
    while True:
        # Doubling keeps a huge line linear in time, up to the first byte beyond the limit.
        data = file.read(max(block_bytes, min(len(rest), most + 1 - len(rest))))
        rest += data
        if not rest:
            return
        cut = _last_line_end(_unescaped(rest, escape), quote) if data else len(rest)
        if cut == 0:
            if len(rest) > most:
                quoted = " (or a quote that is never closed)" if quote in rest and quote else ""
                raise SourceTooLargeError(
                    f"{path} has a line of more than {readable_bytes(most)} at byte {position:,}{quoted}. "
                    "Check the file and Csv(quote=), or pass a larger Resources(memory=).",
                    parameter="memory",
                )
            continue
        yield LineBlock(rest[:cut], position, position + cut)
        position += cut
        rest = rest[cut:]
        if not data:
            return


class TextSource(FileSource):
    """A file of lines, plain or compressed. A position is a byte of the decoded text."""

    blank: bytes | None = None
    """The characters of lines that hold no row; None: white space."""

    def __init__(self, path: Path, name: str) -> None:
        super().__init__(path, name)
        with path.open("rb") as file:
            self.num_positions = None if file.read(8).startswith(tuple(_MAGIC)) else self.num_bytes

    def _blocks(
        self, start: int, block_bytes: int, *, encoding: str = "utf-8", quote: str = "", escape: str = ""
    ) -> Generator[LineBlock, None, None]:
        with closing(open_text(self.path, encoding)) as text:
            yield from line_blocks(
                text,
                start=start,
                block_bytes=block_bytes,
                path=self.path,
                quote=quote.encode(),
                escape=escape.encode(),
                max_line_bytes=self.limits.line_bytes,
            )

    def line_of(self, row: int) -> int | None:
        return self._line_of(row, 0, 0)

    def _line_of(
        self, row: int, start: int, lines: int, *, quote: str = "", escape: str = "", encoding: str = "utf-8"
    ) -> int | None:
        """The line of a row, both from 1, where rows start at a position behind some lines."""
        rows = 0
        with closing(self._blocks(start, _LINES_BYTES, encoding=encoding, quote=quote, escape=escape)) as blocks:
            for block in blocks:
                is_inside = False
                for line in _unescaped(block.data, escape.encode()).split(b"\n"):
                    lines += 1
                    rows += not is_inside and bool(line.strip(self.blank))
                    if rows == row:
                        return lines
                    is_inside ^= bool(quote) and line.count(quote.encode()) % 2 == 1
                lines -= block.data.endswith(b"\n")  # what follows the last line break is no line
        return None


def _unescaped(data: bytes, escape: bytes) -> bytes:
    """The text with other characters in place of those behind an escape character."""
    return re.sub(re.escape(escape) + b".", b"..", data, flags=re.DOTALL) if escape else data


def _last_line_end(data: bytes, quote: bytes) -> int:
    """Position after the last line break outside quotes; 0 if there is none."""
    if not quote or quote not in data:
        return data.rfind(b"\n") + 1
    # Doubled quotes keep the count even, so a line break is outside quotes if an even number precedes it. If that is odd, everything
    # after the last quote is inside: the search continues before that quote.
    end = data.rfind(b"\n")
    while end >= 0 and data.count(quote, 0, end) % 2:
        end = data.rfind(b"\n", 0, data.rfind(quote, 0, end))
    return end + 1
