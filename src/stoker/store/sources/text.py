"""Text files: decompressed, decoded to UTF-8, and cut into blocks of whole lines.

Positions are bytes of the decoded text, so a reader can go on in the middle of a file, compressed or not. Compression
is told by the first bytes, not by the name.
"""

from __future__ import annotations

import codecs
import io
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from stoker.errors import OptionError, SourceEmpty, SourceInvalid, SourceTooLarge
from stoker.units import readable_bytes

MAX_LINE_BYTES = 128 << 20
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bz2", b"\xfd7zXZ\x00": "xz"}
_MARKS = {  # UTF-32 first: its mark begins with that of UTF-16
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


class Readable(Protocol):
    """What is needed of an open file."""

    def read(self, num_bytes: int, /) -> bytes:
        """At most `num_bytes`, and nothing only at the end."""
        ...

    def close(self) -> None:
        """Give the descriptor back."""
        ...


@dataclass(frozen=True, slots=True)
class Block:
    """Whole lines, and the positions before and behind them."""

    data: bytes
    begin: int
    end: int


def open_text(path: Path, encoding: str = "utf-8") -> Readable:
    """Open a text file for reading as UTF-8 bytes without a byte order mark."""
    try:
        with path.open("rb") as file:
            start = file.read(8)
    except OSError as error:
        raise SourceInvalid(f"{path} cannot be read: {os.strerror(error.errno or 0)}.") from error
    if not start:
        raise SourceEmpty(f"{path} is empty (0 bytes). Remove it, or leave it out of the pattern.")
    return _Decoder(_decompress(path, start), path, encoding)


def is_compressed(path: Path) -> bool:
    """Whether the first bytes are those of a compressed file."""
    with path.open("rb") as file:
        return file.read(8).startswith(tuple(_MAGIC))


def _decompress(path: Path, start: bytes) -> Readable:
    kind = next((kind for magic, kind in _MAGIC.items() if start.startswith(magic)), None)
    if kind is None:
        return path.open("rb")
    if kind == "gzip":
        import gzip

        return gzip.open(path, "rb")
    if kind == "bz2":
        import bz2

        return bz2.open(path, "rb")
    if kind == "xz":
        import lzma

        return lzma.open(path, "rb")
    return _Zstd(path)


class _Zstd:
    """Zstandard by Arrow, which says so when the last frame is cut."""

    def __init__(self, path: Path) -> None:
        self._stream = pa.CompressedInputStream(pa.OSFile(str(path)), "zstd")

    def read(self, num_bytes: int, /) -> bytes:
        return bytes(self._stream.read(num_bytes))

    def close(self) -> None:
        self._stream.close()


class _Decoder:
    """Bytes of a file as UTF-8: other encodings are converted, damage in the compression is named."""

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
            raise OptionError(f"{encoding!r} is not an encoding; expected one like utf-8, latin-1 or utf-16.") from None
        plain = codecs.lookup(encoding).name in ("utf-8", "ascii")
        self._decoder = None if plain else codecs.getincrementaldecoder(encoding)()

    def _read(self, num_bytes: int) -> bytes:
        try:
            return self._raw.read(num_bytes)
        except (OSError, EOFError, ValueError, io.UnsupportedOperation) as error:
            raise SourceInvalid(f"{self._path} cannot be decompressed: {error}. Fetch or make the file again.") from error
        except Exception as error:  # zlib.error and lzma.LZMAError share no base with the others
            raise SourceInvalid(f"{self._path} cannot be decompressed: {error}. Fetch or make the file again.") from error

    def read(self, num_bytes: int, /) -> bytes:
        # Never more than asked for: whoever skips to a position must end at it.
        data = self._rest or self._decoded(num_bytes)
        self._rest = data[num_bytes:]
        return data[:num_bytes]

    def _decoded(self, num_bytes: int) -> bytes:
        """Some more bytes, at about `num_bytes`; none only at the end."""
        while True:
            data, self._head = self._head or self._read(num_bytes), b""
            if self._decoder is None:
                return data
            try:
                text = self._decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                raise SourceInvalid(f"{self._path} is not {self._encoding}: {error.reason}. Pass the right --encoding.") from error
            if text or not data:
                return text.encode()

    def close(self) -> None:
        self._raw.close()

    def __del__(self) -> None:
        # Blocks are read by generators, which may be dropped half-way: the file goes with them.
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
) -> Iterator[Block]:
    """Cut a text into blocks of whole lines of about `block_bytes`, from position `start` (the begin of a line) on.

    A line of more than `max_line_bytes` is an error. With `quote`, a line break between two quotes is part of a value and never
    cuts; a quote behind `escape` is none.
    """
    _skip(file, start)
    most = min(max_line_bytes or MAX_LINE_BYTES, MAX_LINE_BYTES)
    position = start
    rest = b""
    while True:
        # Doubling keeps a huge line linear, up to the one byte that is too much.
        data = file.read(max(block_bytes, min(len(rest), most + 1 - len(rest))))
        rest += data
        if not rest:
            return
        cut = _last_line_end(_without_escapes(rest, escape) if escape else rest, quote) if data else len(rest)
        if cut == 0:
            if len(rest) > most:
                raise SourceTooLarge(
                    f"{path} has a line of more than {readable_bytes(most)} at byte {position:,}"
                    f"{' (or a quote that is never closed)' if quote in rest and quote else ''}. "
                    "Check the file and its --quote, or give more --memory."
                )
            continue
        yield Block(rest[:cut], position, position + cut)
        position += cut
        rest = rest[cut:]
        if not data:
            return


def _skip(file: Readable, num_bytes: int) -> None:
    while num_bytes > 0:
        num_bytes -= len(file.read(min(num_bytes, 1 << 20)) or b"x" * num_bytes)


def _without_escapes(data: bytes, escape: bytes) -> bytes:
    """The same bytes with every escaped one, and its escape, made harmless."""
    return re.sub(re.escape(escape) + b".", b"..", data, flags=re.DOTALL)


def _last_line_end(data: bytes, quote: bytes) -> int:
    """Position behind the last line break that is outside quotes; 0 if there is none."""
    if not quote or quote not in data:
        return data.rfind(b"\n") + 1
    # Doubled quotes keep the count even, so a line break is outside quotes exactly if an even number precedes it. If it
    # is odd, everything behind the last quote is inside: the search goes on before that quote.
    end = data.rfind(b"\n")
    while end >= 0 and data.count(quote, 0, end) % 2:
        end = data.rfind(b"\n", 0, data.rfind(quote, 0, end))
    return end + 1
