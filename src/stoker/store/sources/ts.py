"""Time series classification and regression sets in the `.ts` format of UEA, UCR, aeon and sktime.

A line is a case: its dimensions separated by ":", each a list of numbers, and the label behind the last. One dimension is
the column "value", more are "dim_0", "dim_1", …; the class is the column "label", a regression target is "target". With
time stamps, "(t,v)" pairs, the times are the column "time". A missing value ("?" or NaN) is null.
"""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from stoker.errors import SourceInvalid
from stoker.store.sources.line_source import LineSource, RowFault
from stoker.store.sources.number_text import BadNumber, Floats, number_lists, parse_numbers

MAX_DIMENSIONS = 4096
MAX_CLASSES = 65_536
_FLAGS = ("timestamps", "missing", "univariate", "equallength", "targetlabel")
_COUNTS = ("dimensions", "serieslength")
_NOTES = ("problemname", "dimension", "classlabel")
_PAIR_SHARE = 32
"""A pair of time and value takes hundreds of bytes as objects of Python, so a line may have fewer of them than of numbers."""
_PAIR = re.compile(rb"\(([^(),]*),([^(),]*)\)")
_MOMENT = pa.timestamp("us")


@dataclass(frozen=True, slots=True)
class _Header:
    """What the tags say."""

    flags: dict[str, bool]
    counts: dict[str, int]
    classes: frozenset[str] | None
    """None where cases have no class; empty where the classes are not listed."""
    data_start: int

    @property
    def has_target(self) -> bool:
        return self.flags.get("targetlabel", False)

    @property
    def has_label(self) -> bool:
        return self.classes is not None or self.has_target


@dataclass(slots=True)
class _Case:
    """One line, parsed."""

    dimensions: list[Floats]
    times: list[str]
    label: str


class TsSource(LineSource):
    """One `.ts` file."""

    comments = (b"#", b"%")

    def __init__(self, path: Path, name: str) -> None:
        super().__init__(path, name)

    @cached_property
    def _header(self) -> _Header:
        flags: dict[str, bool] = {}
        counts: dict[str, int] = {}
        classes: frozenset[str] | None = None
        with closing(self._header_lines()) as lines:
            for number, line, end in lines:
                tag, *words = line.split(None, MAX_CLASSES + 2)
                name = tag[1:].lower()
                if not tag.startswith("@"):
                    self.refuse_line(number, f"expected a tag like '@problemName' before '@data', found {line[:40]!r}")
                if name == "data":
                    return self._checked(_Header(flags, counts, classes, end))
                if name in _FLAGS:
                    flags[name] = self._flag(number, tag, words)
                elif name in _COUNTS:
                    if len(words) != 1 or not words[0].isdecimal():
                        self.refuse_line(number, f"{tag} needs a whole number, found {' '.join(words)[:40]!r}")
                    counts[name] = int(words[0])
                elif name == "classlabel":
                    if len(words) > MAX_CLASSES + 1:
                        self.refuse_line(number, f"{tag} lists more than {MAX_CLASSES:,} classes")
                    classes = frozenset(words[1:]) if self._flag(number, tag, words[:1]) else None
                elif name not in _NOTES:
                    self.refuse_line(number, f"the tag {tag[:40]!r} is not known")
        raise AssertionError("the lines of a header end with an error or with @data")

    def _flag(self, number: int, tag: str, words: list[str]) -> bool:
        if len(words) != 1 or words[0].lower() not in ("true", "false"):
            self.refuse_line(number, f"{tag} needs true or false, found {' '.join(words)[:40]!r}")
        return words[0].lower() == "true"

    def _checked(self, header: _Header) -> _Header:
        dimensions = header.counts.get("dimensions", 1)
        most = min(MAX_DIMENSIONS, self.limits.columns)
        if not 1 <= dimensions <= most:
            raise SourceInvalid(f"{self.path} declares {dimensions:,} dimensions; 1 to {most:,} can be read.")
        if header.flags.get("univariate", False) and dimensions > 1:
            raise SourceInvalid(
                f"{self.path} declares @univariate true and @dimensions {dimensions}. Which is right? Fix the header."
            )
        if header.has_target and header.classes is not None:
            raise SourceInvalid(f"{self.path} declares both @classLabel and @targetLabel. Which is right? Fix the header.")
        return header

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
        return 1 if self._header.flags.get("univariate", False) or self._model is None else len(self._model.dimensions)

    @cached_property
    def _length(self) -> int | None:
        """The length of every series, where it is declared to be one."""
        if not self._header.flags.get("equallength", False):
            return None
        declared = self._header.counts.get("serieslength", 0)
        return declared or (len(self._model.dimensions[0]) if self._model is not None else None)

    @property
    def _columns(self) -> list[str]:
        single = self._num_dimensions == 1 and self._header.flags.get("univariate", True)
        return ["value"] if single else [f"dim_{i}" for i in range(self._num_dimensions)]

    def _table(self, rows: list[bytes]) -> pa.Table:
        cases: list[_Case] = []
        for i, row in enumerate(rows):
            try:
                case = self._case(row)
                self._check(case)
            except ValueError as error:
                raise RowFault(i, str(error)) from error
            cases.append(case)
        arrays: dict[str, pa.Array] = {}
        if self._header.flags.get("timestamps", False):
            arrays["time"] = self._times(cases)
        for d, name in enumerate(self._columns):
            arrays[name] = number_lists([case.dimensions[d] for case in cases], nan_is_missing=True)
        if self._header.has_target:
            targets = np.array([_target(case.label) for case in cases], dtype=np.float64)
            arrays["target"] = pa.array(targets, mask=np.isnan(targets))
        elif self._header.has_label:
            arrays["label"] = pa.array([case.label for case in cases], pa.string()).dictionary_encode()
        return pa.table(arrays)

    def _case(self, row: bytes) -> _Case:
        label = b""
        if self._header.has_label:
            row, colon, label = row.rpartition(b":")
            if not colon:
                raise ValueError("expected a label behind ':', found none")
        text = label.strip().decode("utf-8", "strict")
        if self._header.flags.get("timestamps", False):
            most = self.limits.line_bytes // _PAIR_SHARE
            if (found := row.count(b"(")) > most:
                raise ValueError(f"{found:,} pairs of time and value found; at most {most:,} can be read, more with more --memory")
            times, dimensions = _pairs(row)
            return _Case(dimensions, times, text)
        self._refuse_dimensions(row.count(b":") + 1)
        return _Case([parse_numbers(part) for part in row.split(b":")], [], text)

    def _refuse_dimensions(self, found: int) -> None:
        """Before a line is cut into as many parts."""
        declared = self._header.counts.get("dimensions", min(MAX_DIMENSIONS, self.limits.columns))
        if found > declared:
            raise ValueError(f"{found:,} dimensions found, at most {declared:,} expected")

    def _check(self, case: _Case) -> None:
        if len(case.dimensions) != self._num_dimensions:
            raise ValueError(f"{len(case.dimensions)} dimensions found, {self._num_dimensions} expected")
        lengths = [len(values) for values in case.dimensions]
        for d, length in enumerate(lengths):
            if self._length is not None and length != self._length:
                raise ValueError(
                    f"dimension {d} has {length:,} values, {self._length:,} expected by @seriesLength or the first case"
                )
            if length != lengths[0]:
                raise ValueError(f"dimension {d} has {length:,} values, but dimension 0 has {lengths[0]:,}")
        if self._header.has_target:
            _target(case.label)
        elif self._header.classes and case.label not in self._header.classes:
            shown = " ".join(sorted(self._header.classes)[:20])
            raise ValueError(f"the label {case.label[:40]!r} is not among the classes declared ({shown})")

    def _times(self, cases: list[_Case]) -> pa.Array:
        """Times as numbers if the first is one, else as moments."""
        model = self._model
        if model is None or not model.times or _is_number(model.times[0]):
            rows = []
            for i, case in enumerate(cases):
                try:
                    rows.append(parse_numbers(",".join(case.times).encode()))
                except BadNumber as error:
                    raise RowFault(i, f"the time {error}, but the first time of the file is") from error
            return number_lists(rows, nan_is_missing=False)
        offsets = np.concatenate([[0], np.cumsum([len(case.times) for case in cases])]).astype(np.int64)
        for i, case in enumerate(cases):
            try:
                pa.array(case.times, pa.string()).cast(_MOMENT)
            except pa.ArrowInvalid as error:
                raise RowFault(i, "a time is not ISO 8601 like '2007-01-01 00:00:00'") from error
        flat = pa.array([time for case in cases for time in case.times], pa.string()).cast(_MOMENT)
        return pa.LargeListArray.from_arrays(pa.array(offsets), flat)


def _target(label: str) -> float:
    values = parse_numbers(label.encode())
    if values.size != 1:
        raise BadNumber(f"the target {label[:40]!r} is not a number")
    return float(values[0])


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _pairs(row: bytes) -> tuple[list[str], list[Floats]]:
    """The times and the dimensions of "(t,v),(t,v):(t,v),(t,v)"; all dimensions have the same times."""
    dimensions: list[list[tuple[bytes, bytes]]] = [[]]
    position = 0
    for pair in _PAIR.finditer(row):
        between = row[position : pair.start()].strip()
        if between == b":" and dimensions[-1]:
            dimensions.append([])
        elif between != (b"," if dimensions[-1] else b""):
            raise ValueError(
                f"expected pairs like '(time,value),(time,value)', found {between[:20].decode('utf-8', 'replace')!r} between two"
            )
        dimensions[-1].append((pair[1].strip(), pair[2]))
        position = pair.end()
    if row[position:].strip():
        raise ValueError(f"expected pairs like '(time,value)', found {row[position:][:20].decode('utf-8', 'replace')!r}")
    times = [time for time, _ in dimensions[0]]
    if any([time for time, _ in dimension] != times for dimension in dimensions):
        raise ValueError("dimensions with time stamps of their own cannot be read")
    return [time.decode("utf-8", "replace") for time in times], [
        parse_numbers(b",".join(value for _, value in one)) for one in dimensions
    ]
