"""UCR's `.tsv`: no header, tabs, a series a line with its label first.

Series shorter than the longest are padded with NaN at their end, which is taken off; NaN between values stays.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from stoker.errors import SourceEmpty, SourceInvalid, SourceTooLarge
from stoker.store.sources.line_source import LineSource, RowFault
from stoker.store.sources.number_text import BadNumber, number_lists, parse_numbers
from stoker.store.sources.source import MOST, Limits


class UcrSource(LineSource):
    """One `.tsv` file in UCR's form: columns "value" (a list) and "label" (text)."""

    @property
    def _data_start(self) -> int:
        return 0

    @cached_property
    def _num_fields(self) -> int:
        if self._first_line is None:
            raise SourceEmpty(f"{self.path} holds nothing but blank lines. Remove it, or leave it out of the pattern.")
        row = self._first_line[1]
        if not is_ucr_row(row):
            raise SourceInvalid(
                f"{self.path} does not begin with a label and numbers between tabs, but with {row[:40]!r}. Is it a table?"
            )
        return row.count(b"\t") + 1

    def _table(self, rows: list[bytes]) -> pa.Table:
        expected = self._num_fields
        labels, series = [], []
        for i, row in enumerate(rows):
            label, _, text = row.partition(b"\t")
            found = row.count(b"\t") + 1
            if found != expected:
                raise RowFault(i, f"{found:,} fields found, {expected:,} expected as in the first line")
            try:
                values = parse_numbers(text, b"\t")
                labels.append(label.strip().decode())
            except (BadNumber, UnicodeDecodeError) as error:
                raise RowFault(i, str(error)) from error
            if not labels[-1]:
                raise RowFault(i, "the label is empty")
            given = np.flatnonzero(~np.isnan(values))
            series.append(values[: int(given[-1]) + 1 if given.size else 0])
        return pa.table(
            {"value": number_lists(series, nan_is_missing=False), "label": pa.array(labels, pa.string()).dictionary_encode()}
        )


def is_ucr_row(row: bytes) -> bool:
    """Whether a line is a whole number and then at least one number, between tabs."""
    label, tab, text = row.partition(b"\t")
    try:
        return bool(tab) and float(label).is_integer() and parse_numbers(text, b"\t").size > 0
    except (ValueError, OverflowError):
        return False


def is_ucr(path: Path, limits: Limits = MOST) -> bool:
    """Whether the first line of a `.tsv` file is in UCR's form, and not the header or a row of a table."""
    source = UcrSource(path, path.name)
    source.limits = limits
    try:
        first = source._first_line
    except (SourceEmpty, SourceInvalid, SourceTooLarge):
        return False
    return first is not None and is_ucr_row(first[1])
