"""JSON text: `JsonText` is a cursor over a document of any size, `infer_types` and `build_columns` read rows one by one.

The memory of a cursor is bounded by what is requested plus one element. Elements of an array are split by their brackets alone;
whether their text is JSON is checked by the parser.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stoker._text import readable_bytes
from stoker.errors import SourceInvalidError, SourceTooLargeError
from stoker.store.formats.base import MAX_LIMITS, ReadLimits, is_list
from stoker.store.formats.text import MAX_LINE_BYTES, Readable

PIECE_BYTES = 256 << 10
MAX_VALUE_BYTES = 16 << 20
_SPACE = b" \t\r\n"
_NUMBER_TAIL = 4
_ESCAPE = re.compile(rb"\\.", re.DOTALL)

Types = Mapping[str, pa.DataType]


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; a repeated key is an error."""
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} occurs twice")
    return found


def keys_of(text: bytes, *, top_level: bool = False) -> Iterator[bytes]:
    """The keys of all objects in some JSON (or of the outermost objects), as they are written, with repetitions.

    They are found by their colons alone, in linear time: a parser that makes a column of each must not get too many.
    """
    plain = _ESCAPE.sub(b"xx", text) if b"\\" in text else text
    codes = np.frombuffer(plain, dtype=np.uint8)
    quotes = np.flatnonzero(codes == ord('"'))
    colons = np.flatnonzero(codes == ord(":"))
    before = np.searchsorted(quotes, colons)
    outside = (before % 2 == 0) & (before > 0)
    if top_level:
        marks = np.flatnonzero(_STEPS[codes] != 0)
        marks = marks[np.searchsorted(quotes, marks) % 2 == 0]
        depths = np.concatenate([[0], np.cumsum(_STEPS[codes[marks]], dtype=np.int64)])
        outside &= depths[np.searchsorted(marks, colons)] == 1
    behind = before[outside]
    for begin, end in zip((quotes[behind - 2] + 1).tolist(), quotes[behind - 1].tolist(), strict=True):
        yield text[begin:end]


_DECODER = json.JSONDecoder(object_pairs_hook=unique)

_STEPS = np.zeros(256, dtype=np.int8)
_STEPS[[ord("["), ord("{")]] = 1
_STEPS[[ord("]"), ord("}")]] = -1
_MARKS = _STEPS != 0
_MARKS[ord(",")] = True


@dataclass(frozen=True, slots=True)
class RowTexts:
    """Rows, or elements of an array, as text: one per line, and their number."""

    lines: bytes
    count: int
    rows_before: int = 0
    column: str | None = None  # where rows are not objects but plain values: the name of their one column


class JsonText:
    """A cursor over a JSON document, from byte `start` on; with `entered`, it steps into the array that begins there.

    `label` names the document in messages. About `piece_bytes` of the text are held at a time, and more only for a larger value or
    element, up to `limits`. The file is closed with the cursor.
    """

    def __init__(
        self,
        file: Readable,
        label: str,
        *,
        start: int = 0,
        entered: bool = False,
        limits: ReadLimits = MAX_LIMITS,
        piece_bytes: int = PIECE_BYTES,
    ) -> None:
        self._file = file
        self._label = label
        self._max_value = min(limits.line_bytes, MAX_VALUE_BYTES)
        self._max_element = min(limits.line_bytes, MAX_LINE_BYTES)
        self._piece_bytes = piece_bytes
        self._held = b""
        self._at_end = False
        self.position = 0  # bytes of the document before the cursor
        self._scan = _Scan()
        try:
            while self.position < start:
                self._held = file.read(min(start - self.position, 1 << 20))
                if not self._held:
                    raise SourceInvalidError(
                        f"{label} ends at byte {self.position:,}, but byte {start:,} was read before. It was changed."
                    )
                self._drop(len(self._held))
            if entered:
                self.enter()
        except BaseException:
            file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _drop(self, num_bytes: int) -> None:
        self._held = self._held[num_bytes:]
        self.position += num_bytes

    def _pull(self) -> bytes:
        """Hold one piece more, as large as what is held: that keeps a huge value linear in time. Nothing at the end."""
        piece = b"" if self._at_end else self._file.read(max(self._piece_bytes, len(self._held)))
        self._at_end = not piece
        self._held += piece
        return piece

    def peek(self) -> bytes:
        """The next byte that is not white space; nothing at the end of the document."""
        while True:
            self._drop(len(self._held) - len(self._held.lstrip(_SPACE)))
            if self._held or not self._pull():
                return self._held[:1]

    def expect(self, mark: bytes) -> None:
        """Step over one mark, like a bracket."""
        found = self.peek()
        if found != mark:
            self._fail(f"expected {mark.decode()!r}, found {_shown(self._held[:20]) if found else 'the end of the file'}")
        self._drop(1)

    def finish(self) -> None:
        """Make sure that nothing but white space follows."""
        if self.peek():
            found = _shown(self._held[:20])
            self._fail(f"expected the end of the file, found {found}; if each line is an object of its own, name it .jsonl")

    def _fail(self, reason: str) -> NoReturn:
        raise SourceInvalidError(f"{self._label} is not valid JSON at byte {self.position + 1:,}: {reason}.")

    def value(self) -> Any:
        """Step over one value of bounded size and return it."""
        self.peek()
        while True:
            try:  # a character that is cut at the end of what is held is left out
                text = codecs.getincrementaldecoder("utf-8")().decode(self._held, final=self._at_end)
            except UnicodeDecodeError as error:
                self._fail(f"not UTF-8 ({error.reason})")
            try:
                value, end = _DECODER.raw_decode(text)
            except (ValueError, RecursionError) as error:
                if self._at_end or not isinstance(error, json.JSONDecodeError):
                    self._fail(str(error))
                value, end = None, len(text)
            # A number near the end of what is held may continue after it: "1" may become "1e+5".
            if end + _NUMBER_TAIL < len(text) or self._at_end:
                self._drop(len(text[:end].encode()))
                return value
            if len(self._held) > self._max_value:
                raise SourceTooLargeError(
                    f"{self._label} has a value of more than {readable_bytes(self._max_value)} at byte {self.position + 1:,}. "
                    "Check the file, or pass a larger memory=."
                )
            self._pull()

    def key(self) -> str:
        """Step over a key of an object and its colon."""
        if self.peek() != b'"':
            self.expect(b'"')
        name = str(self.value())
        try:
            name.encode()
        except UnicodeEncodeError as error:
            self._fail(f"the key before it is not Unicode text ({error.reason})")
        self.expect(b":")
        return name

    def enter(self) -> None:
        """Step into an array; `take` then gives its elements."""
        self.expect(b"[")
        self._scan = _Scan()

    def take(self, *, max_bytes: int, max_count: int | None = None) -> RowTexts | None:
        """The next elements of the array entered, at least one; None after the last, when the cursor is behind the array."""
        scan = self._scan
        while scan.end < 0 and not (scan.commas.size and (scan.seen >= max_bytes or scan.commas.size >= (max_count or np.inf))):
            self._look_on()
        empty = scan.first and scan.end >= 0 and not self._held[: scan.end].strip(_SPACE)
        if scan.finished or empty:
            self._drop(scan.end)
            self.expect(b"]")
            return None
        count = max(1, int(np.searchsorted(scan.commas, max_bytes, side="right")))
        count = min(count, scan.commas.size, max_count or count)
        cuts = scan.commas[:count]
        # The last element ends at the bracket. It is taken with the others if it fits, or alone.
        last = scan.end >= 0 and count == scan.commas.size and count != max_count and (scan.end <= max_bytes or not count)
        if last:
            cuts = np.append(cuts, scan.end)
        flat = self._held[: int(cuts[-1])]
        if b"\n" in flat:  # line breaks inside an element are only layout
            flat = flat.replace(b"\n", b" ")
        bounds = cuts.tolist()
        starts = [0, *(cut + 1 for cut in bounds[:-1])]
        elements = RowTexts(b"\n".join([flat[a:b].strip() for a, b in zip(starts, bounds, strict=True)]), len(bounds))
        step = scan.end if last else int(cuts[-1]) + 1
        self._drop(step)
        scan.move(step, finished=last)
        return elements

    def _look_on(self) -> None:
        """Scan the next piece."""
        scan = self._scan
        if scan.seen == len(self._held) and not self._pull():
            total = self.position + len(self._held)
            raise SourceInvalidError(
                f"{self._label} ends inside an array, after {total:,} bytes: it is cut off. Fetch or make it again."
            )
        if not scan.commas.size and scan.seen > self._max_element:
            raise SourceTooLargeError(
                f"{self._label} has an element of more than {readable_bytes(self._max_element)} at byte {self.position + 1:,}. "
                "Check the file, or pass a larger memory=."
            )
        fault = scan.look(self._held[scan.seen : scan.seen + PIECE_BYTES])
        if fault >= 0:
            self._drop(fault)
            self._fail("a line break inside a string")

    def skip(self, max_count: int | None = None) -> int:
        """Step over some or all elements of the array entered; returns their number."""
        count = 0
        while max_count is None or count < max_count:
            elements = self.take(max_bytes=PIECE_BYTES, max_count=None if max_count is None else max_count - count)
            if elements is None:
                break
            count += elements.count
        return count


class _Scan:
    """The positions of the commas and of the end of an array in the held text."""

    def __init__(self) -> None:
        self.commas: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self.end = -1
        self.seen = 0
        self.first = True
        self.finished = False
        self._depth = 0
        self._in_string = 0
        self._escaped = False

    def look(self, piece: bytes) -> int:
        """Scan the next piece of text; returns the position of a line break inside a string, or -1."""
        start, self.seen = self.seen, self.seen + len(piece)
        if self._escaped:
            piece = b"x" + piece[1:]
        if b"\\" in piece:
            piece = _ESCAPE.sub(b"xx", piece)
        self._escaped = piece.endswith(b"\\")
        codes = np.frombuffer(piece, dtype=np.uint8)
        quotes = np.flatnonzero(codes == ord('"'))
        marks = np.flatnonzero(_MARKS[codes])
        breaks = np.flatnonzero(codes == ord("\n"))
        if quotes.size or self._in_string:
            inside = self._in_string
            marks = marks[(np.searchsorted(quotes, marks) + inside) % 2 == 0]
            breaks = breaks[(np.searchsorted(quotes, breaks) + inside) % 2 == 1]
            self._in_string = (inside + quotes.size) % 2
            if breaks.size:
                return start + int(breaks[0])
        depths = self._depth + np.cumsum(_STEPS[codes[marks]], dtype=np.int64)
        self._depth = int(depths[-1]) if depths.size else self._depth
        ends = marks[depths < 0]
        commas = marks[(depths == 0) & (codes[marks] == ord(","))] + start
        if ends.size:
            self.end = start + int(ends[0])
            commas = commas[commas < self.end]
        self.commas = np.concatenate([self.commas, commas])
        return -1

    def move(self, num_bytes: int, *, finished: bool) -> None:
        """The held text now begins `num_bytes` later."""
        self.commas = self.commas[self.commas >= num_bytes] - num_bytes
        self.end = self.end - num_bytes if self.end >= 0 else -1
        self.seen -= num_bytes
        self.first = False
        self.finished = finished


def _shown(text: bytes) -> str:
    return repr(text.decode("utf-8", "replace"))


# Rows one by one, in Python: slow and exact, for rows that Arrow cannot parse, and to find errors.

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_FLOAT32_MAX = 3.4028235677973366e38  # from here on, numbers round to infinity
_WORDS = {bool: "a boolean", int: "an integer", float: "a number", str: "a string", list: "a list"}


class JsonTypeError(Exception):
    """A value that its column cannot hold; `wider` says that another type could hold it and all values before it."""

    def __init__(self, column: str, value: Any, expected: str, *, wider: bool = False) -> None:
        text = value.text if isinstance(value, Number) else json.dumps(value, ensure_ascii=False)
        self.found = text if len(text) <= 64 else text[:60] + "…"
        super().__init__(f"{column}: {self.found}")
        self.column = column
        self.expected = expected.replace("double", "float64").replace("string", "a string")
        self.wider = wider


class Number(float):
    """A float that remembers how it was written."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> Number:
        number = super().__new__(cls, text)
        if math.isinf(number):
            raise ValueError(f"{text[:40]} is too large a number for float64")
        number.text = text
        return number


def load(line: bytes, column: str | None) -> dict[str, Any]:
    """One row as an object; a bare value becomes an object with the key `column`."""
    value = json.loads(line.decode(), object_pairs_hook=unique, parse_float=Number)
    if _SURROGATE.search(line):
        json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate is not Unicode
    row = value if column is None else {column: value}
    if not isinstance(row, dict):
        raise ValueError(f"expected an object, found {_WORDS.get(type(row), 'null')}")
    return row


def infer_types(rows: Iterable[dict[str, Any]]) -> dict[str, pa.DataType]:
    """The types that hold all rows; where there is none, the type of the first."""
    types: dict[str, pa.DataType] = {}
    for row in rows:
        merge_types(types, {name: _type_of(value) for name, value in row.items()})
    return types


def build_columns(rows: Iterable[dict[str, Any]], types: Types, known: Collection[str] | None) -> dict[str, pa.Array]:
    """Arrays of given types; a key that is not known is a `ValueError`, a value that does not fit a `JsonTypeError`."""
    columns: dict[str, list[Any]] = {name: [] for name in types}
    for row in rows:
        if known is not None and (extra := [name for name in row if name not in known]):
            raise ValueError(f"it has the key {extra[0]!r}, which the first rows of the file do not have")
        for name, kind in types.items():
            value = row.get(name)
            if isinstance(value, int | float) and (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
                value = value.text if isinstance(value, Number) else json.dumps(value)
            check(name, value, kind)
            columns[name].append(value)
    return {name: arrow_array(values, types[name]) for name, values in columns.items()}


def storage_type(kind: pa.DataType) -> pa.DataType:
    """The type to parse before values are cast to `kind`: times as strings, so that time zones are not dropped."""
    if is_list(kind):
        return pa.list_(storage_type(kind.value_type))
    if pa.types.is_temporal(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind):
        return pa.string()
    return pa.float64() if pa.types.is_float16(kind) else kind


def arrow_array(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Python values as the array that is then cast to `kind`."""
    return pa.array(values, type=storage_type(kind))


def check(column: str, value: Any, kind: pa.DataType) -> None:
    """Raise `JsonTypeError` if a value cannot be held by this type without loss."""
    if value is None:
        return
    if pa.types.is_null(kind):
        raise JsonTypeError(column, value, "null", wider=True)
    if is_list(kind):
        if not isinstance(value, list):
            raise JsonTypeError(column, value, "a list")
        for one in value:
            check(column, one, kind.value_type)
        return
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    expected: Any = bool if pa.types.is_boolean(kind) else int | float if number else dict if pa.types.is_struct(kind) else str
    if not isinstance(value, expected) or (number and isinstance(value, bool)):
        raise JsonTypeError(column, value, str(kind))
    if pa.types.is_integer(kind):
        if isinstance(value, float):
            raise JsonTypeError(column, value, str(kind), wider=kind == pa.int64())
        bounds = np.iinfo(kind.to_pandas_dtype())
        if not int(bounds.min) <= value <= int(bounds.max):
            raise JsonTypeError(column, value, str(kind), wider=kind == pa.int64() and _exact(value))
    elif number:
        if isinstance(value, int) and not _exact(value):
            raise JsonTypeError(column, value, f"{kind}, which cannot hold all its digits")
        if pa.types.is_float32(kind) and math.isfinite(value) and abs(value) >= _FLOAT32_MAX:
            raise JsonTypeError(column, value, f"{kind}, for which it is too large")


def _exact(value: int) -> bool:
    """Whether float64 holds this integer with all its digits."""
    try:
        return int(float(value)) == value
    except OverflowError:
        return False


def _type_of(value: Any) -> pa.DataType:
    """The type of one value alone; of mixed lists, that of the first elements."""
    if isinstance(value, list):
        kind = pa.null()
        for one in value:
            kind = _merged(kind, _type_of(one)) or kind
        return pa.list_(kind)
    if isinstance(value, dict):
        return pa.struct([(name, _type_of(one)) for name, one in value.items()])
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        return pa.int64() if -(2**63) <= value < 2**63 else pa.float64()
    return pa.null() if value is None else pa.float64() if isinstance(value, float) else pa.string()


def merge_types(types: dict[str, pa.DataType], others: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
    """The types that hold the values of both; where there is none, the former. Changes `types`."""
    for name, other in others.items():
        before = types.get(name, pa.null())
        types[name] = _merged(before, other) or before
    return types


def _merged(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type that holds both, or None."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if {one, other} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if pa.types.is_list(one) and pa.types.is_list(other):
        kind = _merged(one.value_type, other.value_type)
        return None if kind is None else pa.list_(kind)
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        fields = {field.name: field.type for field in one}
        for field in other:
            kind = _merged(fields.get(field.name, pa.null()), field.type)
            if kind is None:
                return None
            fields[field.name] = kind
        return pa.struct(list(fields.items()))
    return None
