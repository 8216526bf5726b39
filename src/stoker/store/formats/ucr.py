"""Sets for time series classification and regression: `.ts` (UEA, aeon, sktime), `.arff` (Weka) and UCR's `.tsv`.

    UcrSource    `.tsv`: no header, tabs, one series per line with its label first
    TsSource     `.ts`: one case per line, dimensions separated by ":", the label last
    ArffSource   `.arff`: sets of UCR (numbers and a class per line), of UEA (a relational attribute), and plain tables

A set has one series per row. One dimension is the column "value", more are "dim_0", "dim_1", …; a class is the column "label", a
regression target "target". Missing values ("?") are null.
"""

from __future__ import annotations

import contextlib
import re
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from stoker.errors import SourceEmptyError, SourceInvalidError, SourceTooLargeError
from stoker.store.formats.base import MAX_LIMITS, ReadLimits
from stoker.store.formats.text import MISSING, Floats, LineSource, NumberTextError, number_lists, parse_each, parse_numbers

# Why not aeon's readers: they load a whole file into memory, and their errors do not say which row is wrong.


class UcrSource(LineSource):
    """One `.tsv` file in UCR's form: columns "value" (a list) and "label" (a string).

    Series shorter than the longest are padded with NaN at their end, which is removed; NaN between values stays.
    """

    @property
    def _data_start(self) -> int:
        return 0

    @cached_property
    def _num_fields(self) -> int:
        if self._first_line is None:
            raise SourceEmptyError(f"{self.path} holds nothing but blank lines. Remove it, or leave it out of the pattern.")
        row = self._first_line[1]
        if not is_ucr_row(row):
            raise self.invalid(f"does not begin with a label and numbers between tabs, but with {row[:40]!r}. Is it a table?")
        return row.count(b"\t") + 1

    def _table(self, rows: list[bytes]) -> pa.Table:
        expected = self._num_fields

        def parse(row: bytes) -> tuple[str, Floats]:
            label, _, text = row.partition(b"\t")
            found = row.count(b"\t") + 1
            if found != expected:
                raise ValueError(f"{found:,} fields found, {expected:,} expected as in the first line")
            values, name = parse_numbers(text, b"\t"), label.strip().decode()
            if not name:
                raise ValueError("the label is empty")
            given = np.flatnonzero(~np.isnan(values))
            return name, values[: int(given[-1]) + 1 if given.size else 0]

        parsed = parse_each(rows, parse)
        labels = pa.array([label for label, _ in parsed], pa.string()).dictionary_encode()
        return pa.table({"value": number_lists([values for _, values in parsed], nan_is_missing=False), "label": labels})


def is_ucr_row(row: bytes) -> bool:
    """Whether a line is an integer and then at least one number, separated by tabs."""
    label, tab, text = row.partition(b"\t")
    try:
        return bool(tab) and float(label).is_integer() and parse_numbers(text, b"\t").size > 0
    except (ValueError, OverflowError):
        return False


def is_ucr(path: Path, limits: ReadLimits = MAX_LIMITS) -> bool:
    """Whether the first line of a `.tsv` file is in UCR's form, and not the header or a row of a table."""
    try:
        source = UcrSource(path, path.name)
        source.limits = limits
        first = source._first_line
    except (SourceEmptyError, SourceInvalidError, SourceTooLargeError):
        return False
    return first is not None and is_ucr_row(first[1])


# The `.ts` format. With time stamps, a dimension is a list of "(time,value)" pairs, and the times are the column "time".

MAX_DIMENSIONS = 4096
MAX_CLASSES = 65_536
_FLAGS = ("timestamps", "missing", "univariate", "equallength", "targetlabel")
_COUNTS = ("dimensions", "serieslength")
_NOTES = ("problemname", "dimension", "classlabel")
# A pair of time and value takes hundreds of bytes as objects of Python, so a line may have fewer of them than of numbers.
_PAIR_SHARE = 32
_PAIR = re.compile(rb"\(([^(),]*),([^(),]*)\)")
_MOMENT = pa.timestamp("us")


@dataclass(slots=True)
class _Header:
    """What the tags say."""

    flags: dict[str, bool] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    classes: frozenset[str] | None = None  # None where cases have no class; empty where the classes are not listed
    data_start: int = 0


class _Case(NamedTuple):
    """One line, parsed."""

    dimensions: list[Floats]
    times: list[str]
    label: str


class TsSource(LineSource):
    """One `.ts` file."""

    comments = (b"#", b"%")

    @cached_property
    def _header(self) -> _Header:
        header = _Header()
        with closing(self._header_lines()) as lines:
            for number, line, end in lines:
                tag, *words = line.split(None, MAX_CLASSES + 2)
                name = tag[1:].lower()
                if not tag.startswith("@"):
                    self.refuse_line(number, f"expected a tag like '@problemName' before '@data', found {line[:40]!r}")
                if name == "data":
                    header.data_start = end
                    self._check_header(header)
                    return header
                if name in _FLAGS:
                    header.flags[name] = self._flag(number, tag, words)
                elif name in _COUNTS:
                    if len(words) != 1 or not words[0].isdecimal():
                        self.refuse_line(number, f"{tag} needs an integer, found {' '.join(words)[:40]!r}")
                    header.counts[name] = int(words[0])
                elif name == "classlabel":
                    if len(words) > MAX_CLASSES + 1:
                        self.refuse_line(number, f"{tag} lists more than {MAX_CLASSES:,} classes")
                    header.classes = frozenset(words[1:]) if self._flag(number, tag, words[:1]) else None
                elif name not in _NOTES:
                    self.refuse_line(number, f"the tag {tag[:40]!r} is not known")
        raise AssertionError("the lines of a header end with an error or with @data")

    def _flag(self, number: int, tag: str, words: list[str]) -> bool:
        if len(words) != 1 or words[0].lower() not in ("true", "false"):
            self.refuse_line(number, f"{tag} needs true or false, found {' '.join(words)[:40]!r}")
        return words[0].lower() == "true"

    def _check_header(self, header: _Header) -> None:
        dimensions = header.counts.get("dimensions", 1)
        most = min(MAX_DIMENSIONS, self.limits.columns)
        if not 1 <= dimensions <= most:
            raise self.invalid(f"declares {dimensions:,} dimensions; 1 to {most:,} can be read.")
        if header.flags.get("univariate") and dimensions > 1:
            raise self.invalid(f"declares @univariate true and @dimensions {dimensions}. Which is right? Fix the header.")
        if header.flags.get("targetlabel") and header.classes is not None:
            raise self.invalid("declares both @classLabel and @targetLabel. Which is right? Fix the header.")

    @property
    def _data_start(self) -> int:
        return self._header.data_start

    @cached_property
    def _model(self) -> _Case | None:
        """The first case: what is not declared follows from it."""
        if self._first_line is None:
            return None
        number, row = self._first_line
        try:
            return self._case(row)
        except ValueError as error:
            self.refuse_line(number, str(error))

    @cached_property
    def _num_dimensions(self) -> int:
        if "dimensions" in self._header.counts:
            return self._header.counts["dimensions"]
        return 1 if self._header.flags.get("univariate") or self._model is None else len(self._model.dimensions)

    @cached_property
    def _length(self) -> int | None:
        """The length of every series, where it is declared to be one."""
        if not self._header.flags.get("equallength"):
            return None
        declared = self._header.counts.get("serieslength", 0)
        return declared or (len(self._model.dimensions[0]) if self._model is not None else None)

    def _table(self, rows: list[bytes]) -> pa.Table:
        cases = parse_each(rows, lambda row: self._checked_case(self._case(row)))
        arrays: dict[str, pa.Array] = {}
        if self._header.flags.get("timestamps"):
            arrays["time"] = self._times(cases)
        single = self._num_dimensions == 1 and self._header.flags.get("univariate", True)
        for d in range(self._num_dimensions):
            values = [case.dimensions[d] for case in cases]
            arrays["value" if single else f"dim_{d}"] = number_lists(values, nan_is_missing=True)
        if self._header.flags.get("targetlabel"):
            targets = np.array([_target(case.label) for case in cases], dtype=np.float64)
            arrays["target"] = pa.array(targets, mask=np.isnan(targets))
        elif self._header.classes is not None:
            arrays["label"] = pa.array([case.label for case in cases], pa.string()).dictionary_encode()
        return pa.table(arrays)

    def _case(self, row: bytes) -> _Case:
        label = b""
        if self._header.classes is not None or self._header.flags.get("targetlabel"):
            row, colon, label = row.rpartition(b":")
            if not colon:
                raise ValueError("expected a label behind ':', found none")
        text = label.strip().decode("utf-8", "strict")
        if self._header.flags.get("timestamps"):
            most = self.limits.line_bytes // _PAIR_SHARE
            if (found := row.count(b"(")) > most:
                raise ValueError(f"{found:,} pairs of time and value found; at most {most:,} can be read. Pass a larger memory=")
            times, dimensions = _pairs(row)
            return _Case(dimensions, times, text)
        declared = self._header.counts.get("dimensions", min(MAX_DIMENSIONS, self.limits.columns))
        if (found := row.count(b":") + 1) > declared:  # checked before the line is split
            raise ValueError(f"{found:,} dimensions found, at most {declared:,} expected")
        return _Case([parse_numbers(part) for part in row.split(b":")], [], text)

    def _checked_case(self, case: _Case) -> _Case:
        if len(case.dimensions) != self._num_dimensions:
            raise ValueError(f"{len(case.dimensions)} dimensions found, {self._num_dimensions} expected")
        lengths = [len(values) for values in case.dimensions]
        for d, length in enumerate(lengths):
            if self._length is not None and length != self._length:
                expected = f"{self._length:,} expected by @seriesLength or the first case"
                raise ValueError(f"dimension {d} has {length:,} values, {expected}")
            if length != lengths[0]:
                raise ValueError(f"dimension {d} has {length:,} values, but dimension 0 has {lengths[0]:,}")
        if self._header.flags.get("targetlabel"):
            _target(case.label)
        elif self._header.classes and case.label not in self._header.classes:
            shown = " ".join(sorted(self._header.classes)[:20])
            raise ValueError(f"the label {case.label[:40]!r} is not among the classes declared ({shown})")
        return case

    def _times(self, cases: list[_Case]) -> pa.Array:
        """Times as numbers if the first is one, else as timestamps."""
        first = self._model.times[0] if self._model is not None and self._model.times else "0"
        try:
            float(first)
            numeric = True
        except ValueError:
            numeric = False

        def parse(case: _Case) -> Any:
            try:
                return parse_numbers(",".join(case.times).encode()) if numeric else pa.array(case.times, pa.string()).cast(_MOMENT)
            except NumberTextError as error:
                raise ValueError(f"the time {error}, but the first time of the file is") from error
            except pa.ArrowInvalid as error:
                raise ValueError("a time is not ISO 8601 like '2007-01-01 00:00:00'") from error

        rows = parse_each(cases, parse)
        if numeric:
            return number_lists(rows, nan_is_missing=False)
        offsets = np.cumsum([0, *(len(row) for row in rows)], dtype=np.int64)
        return pa.LargeListArray.from_arrays(pa.array(offsets), pa.chunked_array(rows, _MOMENT).combine_chunks())


def _target(label: str) -> float:
    values = parse_numbers(label.encode())
    if values.size != 1:
        raise NumberTextError(f"the target {label[:40]!r} is not numeric")
    return float(values[0])


def _pairs(row: bytes) -> tuple[list[str], list[Floats]]:
    """The times and the dimensions of "(t,v),(t,v):(t,v),(t,v)"; all dimensions have the same times."""
    dimensions: list[list[tuple[bytes, bytes]]] = [[]]
    position = 0
    for pair in _PAIR.finditer(row):
        between = row[position : pair.start()].strip()
        if between == b":" and dimensions[-1]:
            dimensions.append([])
        elif between != (b"," if dimensions[-1] else b""):
            shown = between[:20].decode("utf-8", "replace")
            raise ValueError(f"expected pairs like '(time,value),(time,value)', found {shown!r} between two")
        dimensions[-1].append((pair[1].strip(), pair[2]))
        position = pair.end()
    if row[position:].strip():
        raise ValueError(f"expected pairs like '(time,value)', found {row[position:][:20].decode('utf-8', 'replace')!r}")
    times = [time for time, _ in dimensions[0]]
    if any([time for time, _ in dimension] != times for dimension in dimensions):
        raise ValueError("dimensions with time stamps of their own cannot be read")
    values = [parse_numbers(b",".join(value for _, value in one)) for one in dimensions]
    return [time.decode("utf-8", "replace") for time in times], values


# The `.arff` format: the attributes of its header, and how a line of data is split into fields.

AttributeKind = Literal["number", "nominal", "text", "moment", "relation"]

MAX_ATTRIBUTES = 1 << 18  # Of the whole file. The longest series of the UEA archive has 236,784 steps, each an attribute.
MAX_VALUES = 1 << 16  # values that all nominal attributes list together
_NAME = r"""('(?:[^'\\]++|\\.)*+'|"(?:[^"\\]++|\\.)*+"|[^\s{]++)"""
_ATTRIBUTE = re.compile(rf"@attribute\s+{_NAME}\s*(.+)", re.IGNORECASE)
_ISO_FORMATS = frozenset({"", "yyyy-MM-dd'T'HH:mm:ss", "yyyy-MM-dd HH:mm:ss", "yyyy-MM-dd"})
_FIELD = re.compile(rb"""\s*+('(?:[^'\\]++|\\.)*+'|"(?:[^"\\]++|\\.)*+"|[^,'"]*+)\s*+(,|$)""", re.DOTALL)  # possessive: linear
_ATTRIBUTE_KINDS: dict[str, AttributeKind] = dict.fromkeys(("numeric", "real", "integer"), "number")
_ATTRIBUTE_KINDS |= {"string": "text", "relational": "relation"}
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


@dataclass(slots=True)
class Attribute:
    """One column: nominal ones list their values, relational ones their own attributes."""

    name: str
    kind: AttributeKind
    values: frozenset[str] = frozenset()
    inner: list[Attribute] | None = None


def unquote(text: str) -> str:
    """A name or value without its quotes and escapes."""
    text = text.strip()
    if len(text) >= 2 and text[0] in "'\"" and text[-1] == text[0]:
        return _ESCAPED.sub(r"\1", text[1:-1])
    return text


def split_fields(line: bytes, most: int) -> list[bytes] | None:
    """Cut at commas outside quotes; None if a quote is not closed or not at the border of a field.

    More than `most` fields are not all cut: there is then one too many, which holds the rest.
    """
    if b"'" not in line and b'"' not in line:
        return [part.strip() for part in line.split(b",", most)]
    fields: list[bytes] = []
    position = 0
    while True:
        match = _FIELD.match(line, position)
        if match is None:
            return None
        fields.append(match[1].strip())
        if not match[2] or len(fields) > most:
            return fields
        position = match.end()


# The source of `.arff`. With `as_table`, lines are steps and each attribute is a column.

_MOMENT_ARFF = pa.timestamp("s")
_DIMENSION_BREAK = b"\\n"


class ArffSource(LineSource):
    """One `.arff` file."""

    comments = (b"%",)

    def __init__(self, path: Path, name: str, *, as_table: bool = False) -> None:
        super().__init__(path, name)
        self.as_table = as_table

    @cached_property
    def _header(self) -> tuple[list[Attribute], int]:
        """The attributes, and the position behind the line '@data'."""
        attributes, end = self._parse_header()
        names = [attribute.name for attribute in attributes]
        if not names:
            raise self.invalid("declares no '@attribute' before '@data'. Is it cut off, or not what its name says?")
        if len(set(names)) < len(names):
            double = next(name for name in names if names.count(name) > 1)
            raise self.invalid(f"declares the attribute {double!r} twice. Rename one of them.")
        self._refuse_other_forms(attributes)
        return attributes, end

    def _parse_header(self) -> tuple[list[Attribute], int]:
        attributes: list[Attribute] = []
        relation: Attribute | None = None
        num_attributes = num_values = 0
        with closing(self._header_lines()) as lines:
            for number, line, end in lines:
                tag = line.split(None, 1)[0].lower()
                if tag == "@data":
                    if relation is not None:
                        self.refuse_line(number, f"the relational attribute {relation.name!r} has no '@end'")
                    return attributes, end
                if tag == "@attribute":
                    found = self._attribute(number, line, MAX_VALUES - num_values)
                    (attributes if relation is None or relation.inner is None else relation.inner).append(found)
                    if found.kind == "relation":
                        if relation is not None:
                            self.refuse_line(number, "a relational attribute within another cannot be read")
                        relation, found.inner = found, []
                    num_attributes, num_values = num_attributes + 1, num_values + len(found.values)
                    if num_attributes > MAX_ATTRIBUTES:
                        self.refuse_line(number, f"more than {MAX_ATTRIBUTES:,} attributes")
                elif tag == "@end":
                    if relation is None:
                        self.refuse_line(number, "'@end' without a relational attribute before it")
                    relation = None
                elif tag != "@relation":
                    self.refuse_line(number, f"expected '@relation', '@attribute' or '@data', found {line[:40]!r}")
        raise AssertionError("the lines of a header end with an error or with @data")

    def _attribute(self, number: int, line: str, max_values: int) -> Attribute:
        match = _ATTRIBUTE.fullmatch(line)
        if match is None:
            self.refuse_line(number, f"expected '@attribute name type', found {line[:60]!r}")
        name, declared = unquote(match[1]), match[2].strip()
        word, _, rest = declared.partition(" ")
        if declared.startswith("{"):
            if not declared.endswith("}"):
                self.refuse_line(number, f"the values of {name!r} do not end with '}}'")
            fields = split_fields(declared[1:-1].encode(), max_values)
            if fields is None:
                self.refuse_line(number, f"the values of {name!r} have a quote that is not closed")
            if len(fields) > max_values:
                self.refuse_line(number, f"nominal attributes up to {name!r} list more than {MAX_VALUES:,} values")
            return Attribute(name, "nominal", frozenset(unquote(value.decode()) for value in fields))
        if word.lower() == "date":
            return Attribute(name, "moment" if unquote(rest.strip()) in _ISO_FORMATS else "text")
        if word.lower() not in _ATTRIBUTE_KINDS:
            self.refuse_line(number, f"the attribute {name!r} has the type {declared[:40]!r}, which is not known")
        return Attribute(name, _ATTRIBUTE_KINDS[word.lower()])

    def _refuse_other_forms(self, attributes: list[Attribute]) -> None:
        kinds = [attribute.kind for attribute in attributes]
        if self.as_table:
            if "relation" in kinds:
                raise self.invalid("has a relational attribute: it holds one series per line, and is not a table of steps.")
            return
        univariate = len(kinds) > 1 and set(kinds[:-1]) == {"number"} and kinds[-1] == "nominal"
        multivariate = kinds[0] == "relation" and kinds[1:] in ([], ["nominal"], ["number"])
        if not univariate and not multivariate:
            raise self.invalid(
                "is not a set of series: expected numeric attributes and then a nominal class, or one relational "
                "attribute and a class. Pass series= or time= to read it as a table."
            )
        if multivariate and any(inner.kind != "number" for inner in attributes[0].inner or ()):
            raise self.invalid("has a relational attribute with parts that are not numeric, which cannot be read.")

    @property
    def _data_start(self) -> int:
        return self._header[1]

    def _fields(self, row: bytes) -> list[bytes]:
        """As many fields as there are attributes; of a set of series without relation, all numbers as one."""
        attributes = self._header[0]
        expected = len(attributes)
        if row.startswith(b"{"):
            raise ValueError("sparse data ('{index value, …}') cannot be read; save it in dense form")
        plain = b"'" not in row and b'"' not in row
        found = row.count(b",") + 1
        if plain and found == expected and not self.as_table and attributes[0].kind == "number":
            numbers, _, label = row.rpartition(b",")  # a field each would take far more memory than the line
            return [numbers, label.strip()]
        fields = split_fields(row, expected)
        if fields is None:
            raise ValueError("a quote is not closed")
        if len(fields) != expected:
            shown = f"{len(fields):,}" if len(fields) < expected else f"{found:,}" if plain else f"more than {expected:,}"
            raise ValueError(f"{shown} fields found, {expected:,} expected by '@attribute'")
        return fields

    def _table(self, rows: list[bytes]) -> pa.Table:
        attributes, fields = self._header[0], parse_each(rows, self._fields)
        if self.as_table:
            columns = list(zip(*fields, strict=True)) if fields else [()] * len(attributes)
            return pa.table({a.name: _column(a, list(column)) for a, column in zip(attributes, columns, strict=True)})
        if attributes[0].kind == "relation":
            series = parse_each([row[0] for row in fields], self._dimensions)
            dimensions = range(self._num_dimensions)
            arrays = {f"dim_{d}": number_lists([one[d] for one in series], nan_is_missing=True) for d in dimensions}
        else:
            numbers = parse_each(fields, lambda row: parse_numbers(b",".join(row[:-1])))
            arrays = {"value": number_lists(numbers, nan_is_missing=True)}
        for attribute in attributes[-1:] if "value" in arrays else attributes[1:]:
            arrays["label" if attribute.kind == "nominal" else "target"] = _column(attribute, [row[-1] for row in fields])
        return pa.table(arrays)

    @cached_property
    def _num_dimensions(self) -> int:
        """Not declared anywhere, so it is taken from the first case."""
        fields = split_fields(self._first_line[1], len(self._header[0])) if self._first_line is not None else None
        found = fields[0].count(_DIMENSION_BREAK) + 1 if fields else 1
        most = min(MAX_DIMENSIONS, self.limits.columns)
        if found > most:
            raise SourceTooLargeError(f"{self.path} has {found:,} dimensions; at most {most:,} can be read.")
        return found

    def _dimensions(self, field: bytes) -> list[Floats]:
        """The dimensions of a relational attribute."""
        expected, length = self._num_dimensions, len(self._header[0][0].inner or ())
        if (found := field.count(_DIMENSION_BREAK) + 1) != expected:
            raise ValueError(f"{found:,} dimensions found, {expected:,} expected as in the first case")
        quoted = len(field) >= 2 and field[:1] in (b"'", b'"') and field[-1:] == field[:1]
        dimensions = [parse_numbers(part) for part in (field[1:-1] if quoted else field).split(_DIMENSION_BREAK)]
        for d, values in enumerate(dimensions):
            if len(values) != length:
                raise ValueError(f"dimension {d} has {len(values):,} values, {length:,} expected by '@attribute'")
        return dimensions


def _column_numbers(fields: list[bytes]) -> Floats:
    """One number per row: all at once, and one by one only to find the row of an error."""

    def parse(field: bytes) -> float:
        found = parse_numbers(field)
        if found.size != 1:
            raise ValueError("a number is missing; write '?' for a missing value")
        return float(found[0])

    with contextlib.suppress(NumberTextError):
        values = parse_numbers(b",".join(fields))
        if values.size == len(fields):
            return values
    return np.array(parse_each(fields, parse))


def _column(attribute: Attribute, fields: list[bytes]) -> pa.Array:
    """One attribute of all rows."""
    if attribute.kind == "number":
        return pa.array(_column_numbers(fields), mask=np.array([field == MISSING for field in fields], dtype=bool))

    def parse(field: bytes) -> str | None:
        try:
            text = unquote(field.decode())
        except UnicodeDecodeError as error:
            raise ValueError(f"the value of {attribute.name!r} is not UTF-8") from error
        if attribute.kind == "nominal" and field != MISSING and text not in attribute.values:
            shown = ", ".join(sorted(attribute.values)[:20])
            raise ValueError(f"{text[:40]!r} is not among the values declared for {attribute.name!r} ({shown})")
        return None if field == MISSING else text

    def check_date(text: str | None) -> None:
        try:
            pa.array([text], pa.string()).cast(_MOMENT_ARFF)
        except pa.ArrowInvalid as error:
            raise ValueError(f"{str(text)[:40]!r} is not a date like those declared for {attribute.name!r}") from error

    texts = parse_each(fields, parse)
    values = pa.array(texts, pa.string())
    if attribute.kind != "moment":
        return values.dictionary_encode() if attribute.kind == "nominal" else values
    try:
        return values.cast(_MOMENT_ARFF)
    except pa.ArrowInvalid:
        parse_each(texts, check_date)
        raise
