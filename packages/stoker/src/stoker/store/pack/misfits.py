"""Words among numbers or times: all of a pack in one error, with files, rows and lines, and what helps.

misfit_error     the error for words in columns of numbers or times
find_misfits     the words, column by column, each once
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from stoker.errors import BadValueError, SourceError
from stoker.store.formats.base import DataSource
from stoker.store.formats.words import mostly
from stoker.store.pack.column_types import plain_type, type_word

COMMA_NUMBER = re.compile(r"[+-]?\d+(\.\d{3})*,\d+")
OTHER_DATE = re.compile(r"\d{1,4}[./-]\d{1,2}[./-]\d{1,4}\b.*")
"""A date in another notation: no word that could mean missing."""
MOST_SHOWN = 8
"""Different words that an error names."""
SEARCHED_BYTES = 256 << 20
"""How much is read after the first word in search of others: a message about large files must not take minutes."""
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True, kw_only=True)
class Misfit:
    """A string that is not of the type of its column, where it first stands."""

    source: DataSource
    column: str
    kind: pa.DataType
    row: int
    text: str

    def __str__(self) -> str:
        shown = repr(self.text[:_SHOWN_CHARACTERS])
        return f"column {self.column!r} of {self.source.label} holds {shown} in {row_with_line(self.source, self.row)}"


def row_with_line(source: DataSource, row: int) -> str:
    """Return a row, counted from 1 without the header, and the line of a text file that it begins in."""
    line = source.line_of(row)
    return f"row {row:,}" if line is None or line == row else f"row {row:,} (line {line:,})"


def find_misfits(sources: Sequence[DataSource], types: Mapping[str, pa.DataType]) -> tuple[list[Misfit], bool]:
    """Search sources of text for strings that are not of the type of their column.

    Returns:
        Each different word of a column once, a number with a decimal comma standing for all of them; and whether these are all.
    """
    misfits: list[Misfit] = []
    seen: set[tuple[str, str]] = set()
    searched = 0
    for source in sources:
        if source.typed:
            continue
        kinds = {name: kind for name, kind in types.items() if name in source.schema().names}
        with contextlib.suppress(SourceError):  # another fault of this file, which ends the search in it
            for num_bytes, rows in source.find_misfits(kinds) if kinds else ():
                searched += num_bytes if misfits else 0
                for column, row, text in sorted(rows, key=lambda found: found[1]):
                    group = (column, "," if COMMA_NUMBER.fullmatch(text.strip()) else text)  # one example of decimal commas
                    if group not in seen:
                        seen.add(group)
                        misfits.append(Misfit(source=source, column=column, kind=kinds[column], row=row, text=text))
                if len(misfits) > MOST_SHOWN or searched > SEARCHED_BYTES:
                    return misfits[:MOST_SHOWN], False
    return misfits, True


def searched_types(types: Mapping[str, pa.DataType], asked: Mapping[str, str]) -> dict[str, pa.DataType]:
    """Return the columns of numbers and times with the widest type that a value of theirs may have."""
    widest = {}
    for name, kind in types.items():
        value = plain_type(kind)
        if pa.types.is_integer(value) and name not in asked:
            widest[name] = pa.float64()  # as integers become numbers where a fraction comes later
        elif pa.types.is_date(value) or pa.types.is_timestamp(value):
            widest[name] = pa.timestamp("ns", getattr(value, "tz", None))
        elif not (pa.types.is_string(value) or pa.types.is_null(value) or pa.types.is_nested(value)):
            widest[name] = value
    return widest


def misfit_error(
    sources: Sequence[DataSource], name: str, types: Mapping[str, pa.DataType], asked: Mapping[str, str]
) -> BadValueError:
    """Return the error for values that their columns cannot hold, with their rows; the sources are read again to find them all.

    Args:
        sources: All sources of the pack.
        name: The column in which a value was noticed.
        types: The types of the columns.
        asked: The types that the user named.
    """
    kind = types[name]
    misfits, complete = find_misfits(sources, {**searched_types(types, asked), name: kind})
    if not misfits:
        source = sources[0]
        return BadValueError(
            f"column {name!r} of {source.label} holds values that are not {values_word(kind)}.", path=source.path, column=name
        )
    first = misfits[0]
    place: dict[str, Any] = {
        "path": first.source.path,
        "row": first.row,
        "line": first.source.line_of(first.row),
        "column": first.column,
    }
    what = values_word(first.kind)
    if not first.source.has_null_texts and mostly(pa.array([first.text])) is not None:
        return BadValueError(
            f"column {first.column!r} of {first.source.label} holds {what} as strings, like {first.text[:_SHOWN_CHARACTERS]!r} in "
            f"{row_with_line(first.source, first.row)}. Write them without quotes, or pass dtype={{{first.column!r}: 'category'}} to "
            "keep them as words.",
            parameter="dtype",
            **place,
        )
    if len(misfits) == 1 and complete:
        where = f"{first}, but most of its values are {what}"
    else:
        count = f"{len(misfits)}" if complete else f"at least {len(misfits)}"
        where = f"{count} words stand among numbers or times: {'; '.join(map(str, misfits))}"
    parameter = "null" if first.source.has_null_texts else "dtype"
    return BadValueError(f"{where}. {advice_on(misfits, complete=complete)}", parameter=parameter, **place)


def advice_on(misfits: Sequence[Misfit], *, complete: bool) -> str:
    """What helps with words among numbers, as a sentence."""
    files = "file" if len({misfit.source.label for misfit in misfits}) == 1 else "files"
    columns = ", ".join(f"{name!r}: 'category'" for name in dict.fromkeys(misfit.column for misfit in misfits))
    null = null_advice(misfits) if complete else ""
    dates = [misfit for misfit in misfits if _is_date(misfit)]
    if dates:
        return f"Fix the {files}, pass Csv(time_format='...') if all times are like {dates[0].text!r}, or pack a query that parses them."
    return f"Fix the {files}{null}, or pass dtype={{{columns}}} to keep all as words."


def null_advice(misfits: Sequence[Misfit]) -> str:
    """What options help with words: a decimal comma, or names of missing values."""
    if not all(misfit.source.has_null_texts and not _is_date(misfit) for misfit in misfits):
        return ""
    texts = list(dict.fromkeys(misfit.text for misfit in misfits))
    words = [text for text in texts if not COMMA_NUMBER.fullmatch(text.strip())]
    if any(len(text) > _SHOWN_CHARACTERS for text in words):
        return ""
    null = repr(words[0]) if len(words) == 1 else repr(words)
    if not words:
        return ", pass Csv(decimal=',') if the comma is the decimal point (pack files with points separately)"
    if len(words) < len(texts):
        return f", pass Csv(decimal=',', null={null}) if the comma is the decimal point and the words mean missing"
    return f", pass Csv(null={null}) if {'it means' if len(words) == 1 else 'they mean'} missing"


def _is_date(misfit: Misfit) -> bool:
    """Whether a value of a column of times is a time, too, in another notation."""
    return values_word(misfit.kind) == "times" and OTHER_DATE.fullmatch(misfit.text.strip()) is not None


def values_word(kind: pa.DataType) -> str:
    """Return what values of this type are called in messages."""
    value = plain_type(kind)
    if pa.types.is_timestamp(value) or pa.types.is_date(value):
        return "times"
    return {"int64": "integers", "double": "numbers"}.get(str(value), f"{type_word(kind)} values")
