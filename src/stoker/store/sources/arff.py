"""Weka's `.arff`: sets of UCR (numbers and a class a line), of UEA (a relational attribute), and plain tables.

A set of series gives the columns "value" or "dim_0", "dim_1", …, and "label" or "target". With `as_table`, lines are steps
and each attribute is a column. A missing value ("?") is null.
"""

from __future__ import annotations

from contextlib import closing
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from stoker.errors import SourceInvalid, SourceTooLarge
from stoker.store.sources.arff_header import Attribute, HeaderFault, parse_header, split_fields, unquote
from stoker.store.sources.line_source import LineSource, RowFault
from stoker.store.sources.number_text import MISSING, BadNumber, Floats, number_lists, parse_numbers

_MOMENT = pa.timestamp("s")
_DIMENSION_BREAK = b"\\n"
MAX_DIMENSIONS = 4096


class ArffSource(LineSource):
    """One `.arff` file."""

    comments = (b"%",)

    def __init__(self, path: Path, name: str, *, as_table: bool = False) -> None:
        super().__init__(path, name)
        self.as_table = as_table

    @cached_property
    def _header(self) -> tuple[list[Attribute], int]:
        try:
            with closing(self._header_lines()) as lines:
                attributes, end = parse_header(lines)
        except HeaderFault as fault:
            self.refuse_line(fault.number, fault.reason)
        names = [attribute.name for attribute in attributes]
        if not names:
            raise SourceInvalid(f"{self.path} declares no '@attribute' before '@data'. Is it cut off, or not what its name says?")
        if len(set(names)) < len(names):
            double = next(name for name in names if names.count(name) > 1)
            raise SourceInvalid(f"{self.path} declares the attribute {double!r} twice. Rename one of them.")
        self._refuse_other_forms(attributes)
        return attributes, end

    def _refuse_other_forms(self, attributes: list[Attribute]) -> None:
        kinds = [attribute.kind for attribute in attributes]
        if self.as_table:
            if "relation" in kinds:
                raise SourceInvalid(f"{self.path} has a relational attribute: it holds a series a line, and is no table of steps.")
            return
        univariate = len(kinds) > 1 and set(kinds[:-1]) == {"number"} and kinds[-1] == "nominal"
        multivariate = kinds[0] == "relation" and kinds[1:] in ([], ["nominal"], ["number"])
        if not univariate and not multivariate:
            raise SourceInvalid(
                f"{self.path} is not a set of series: expected numeric attributes and then a nominal class, or one relational "
                "attribute and a class. Pass --series or --time to read it as a table."
            )
        if multivariate and any(inner.kind != "number" for inner in attributes[0].inner or ()):
            raise SourceInvalid(f"{self.path} has a relational attribute with parts that are not numeric, which cannot be read.")

    @property
    def _attributes(self) -> list[Attribute]:
        return self._header[0]

    @property
    def _data_start(self) -> int:
        return self._header[1]

    def _fields(self, rows: list[bytes]) -> list[list[bytes]]:
        """The fields of each line, as many as there are attributes; of a set of series without relation, all numbers as one."""
        expected = len(self._attributes)
        cut = []
        for i, row in enumerate(rows):
            if row.startswith(b"{"):
                raise RowFault(i, "sparse data ('{index value, …}') cannot be read; save it in dense form")
            plain = b"'" not in row and b'"' not in row
            found = row.count(b",") + 1
            if plain and found == expected and not self.as_table and self._attributes[0].kind == "number":
                numbers, _, label = row.rpartition(b",")  # a field each would take far more memory than the line
                cut.append([numbers, label.strip()])
                continue
            fields = split_fields(row, expected)
            if fields is None:
                raise RowFault(i, "a quote is not closed")
            if len(fields) != expected:
                shown = f"{len(fields):,}" if len(fields) < expected else f"{found:,}" if plain else f"more than {expected:,}"
                raise RowFault(i, f"{shown} fields found, {expected:,} expected by '@attribute'")
            cut.append(fields)
        return cut

    def _table(self, rows: list[bytes]) -> pa.Table:
        fields = self._fields(rows)
        if self.as_table:
            columns = list(zip(*fields, strict=True)) if fields else [()] * len(self._attributes)
            return pa.table({a.name: _column(a, list(column)) for a, column in zip(self._attributes, columns, strict=True)})
        if self._attributes[0].kind == "relation":
            return self._multivariate(fields)
        series = [_numbers(i, b",".join(row[:-1])) for i, row in enumerate(fields)]
        label = _column(self._attributes[-1], [row[-1] for row in fields])
        return pa.table({"value": number_lists(series, nan_is_missing=True), "label": label})

    @cached_property
    def _num_dimensions(self) -> int:
        """Not declared anywhere, so the first case tells it."""
        fields = split_fields(self._first_line[1], len(self._attributes)) if self._first_line is not None else None
        found = fields[0].count(_DIMENSION_BREAK) + 1 if fields else 1
        most = min(MAX_DIMENSIONS, self.limits.columns)
        if found > most:
            raise SourceTooLarge(f"{self.path} has {found:,} dimensions; at most {most:,} can be read.")
        return found

    def _multivariate(self, rows: list[list[bytes]]) -> pa.Table:
        expected, length = self._num_dimensions, len(self._attributes[0].inner or ())
        dimensions: list[list[Floats]] = [[] for _ in range(expected)]
        for i, row in enumerate(rows):
            if (found := row[0].count(_DIMENSION_BREAK) + 1) != expected:
                raise RowFault(i, f"{found:,} dimensions found, {expected:,} expected as in the first case")
            for d, part in enumerate(_dimensions(row[0])):
                values = _numbers(i, part)
                if len(values) != length:
                    raise RowFault(i, f"dimension {d} has {len(values):,} values, {length:,} expected by '@attribute'")
                dimensions[d].append(values)
        arrays = {f"dim_{d}": number_lists(series, nan_is_missing=True) for d, series in enumerate(dimensions)}
        for attribute in self._attributes[1:]:
            arrays["label" if attribute.kind == "nominal" else "target"] = _column(attribute, [row[1] for row in rows])
        return pa.table(arrays)


def _dimensions(field: bytes) -> list[bytes]:
    quoted = len(field) >= 2 and field[:1] in (b"'", b'"') and field[-1:] == field[:1]
    return (field[1:-1] if quoted else field).split(_DIMENSION_BREAK)


def _numbers(index: int, text: bytes) -> Floats:
    try:
        return parse_numbers(text)
    except BadNumber as error:
        raise RowFault(index, str(error)) from error


def _column_numbers(fields: list[bytes]) -> Floats:
    """One number a row: all at once, and one by one only to find the row of a fault."""
    try:
        values = parse_numbers(b",".join(fields))
        if values.size == len(fields):
            return values
    except BadNumber:
        pass
    for i, field in enumerate(fields):
        if _numbers(i, field).size != 1:
            raise RowFault(i, "a number is missing; write '?' for a missing value")
    raise AssertionError("fields that are numbers one by one are numbers together")


def _column(attribute: Attribute, fields: list[bytes]) -> pa.Array:
    """One attribute of all rows."""
    missing = np.array([field == MISSING for field in fields], dtype=bool)
    if attribute.kind == "number":
        values = _column_numbers(fields)
        return pa.array(values, mask=missing)
    texts: list[str | None] = []
    for i, field in enumerate(fields):
        try:
            text = unquote(field.decode())
        except UnicodeDecodeError as error:
            raise RowFault(i, f"the value of {attribute.name!r} is not UTF-8") from error
        if attribute.kind == "nominal" and not missing[i] and text not in attribute.values:
            shown = ", ".join(sorted(attribute.values)[:20])
            raise RowFault(i, f"{text[:40]!r} is not among the values declared for {attribute.name!r} ({shown})")
        texts.append(None if missing[i] else text)
    if attribute.kind == "moment":
        return _moments(attribute, texts)
    values = pa.array(texts, pa.string())
    return values.dictionary_encode() if attribute.kind == "nominal" else values


def _moments(attribute: Attribute, texts: list[str | None]) -> pa.Array:
    try:
        return pa.array(texts, pa.string()).cast(_MOMENT)
    except pa.ArrowInvalid:
        for i, text in enumerate(texts):
            try:
                pa.array([text], pa.string()).cast(_MOMENT)
            except pa.ArrowInvalid as error:
                raise RowFault(i, f"{str(text)[:40]!r} is not a date like those declared for {attribute.name!r}") from error
        raise
