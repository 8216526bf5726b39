"""The dialect of a table in text: delimiter, quotes, header. Given by the user, or found out from the first lines."""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace

from stoker.errors import OptionError

DELIMITERS = (",", ";", "\t", "|")


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """How a text table is written. None means: find out."""

    delimiter: str | None = None
    quote: str = '"'
    escape: str | None = None
    header: bool | None = None
    """Whether the first line holds the names. None: it does unless all its fields are numbers."""
    skip: int = 0
    """Lines to leave out before the header."""
    null: tuple[str, ...] = ()
    """Texts that mean "missing", next to the empty field, NA, NaN, null and their like."""
    decimal: str = "."
    encoding: str = "utf-8"
    time_format: str | None = None
    """strptime format of times, where they are not ISO 8601."""

    def __post_init__(self) -> None:
        if self.delimiter == "\\t":  # what a shell makes of '\t'
            object.__setattr__(self, "delimiter", "\t")
        for name in ("delimiter", "quote", "escape", "decimal"):
            value = getattr(self, name)
            absent = value is None or (value == "" and name == "quote")
            if not absent and (len(value) != 1 or not value.isascii() or value in "\r\n"):
                raise OptionError(f"--{name} is {value!r}, but one ASCII character is expected.")
        used = [one for one in (self.delimiter, self.quote, self.escape, self.decimal) if one]
        if len(set(used)) < len(used):
            raise OptionError(f"two of --delimiter, --quote, --escape and --decimal are {max(used, key=used.count)!r}. Change one.")
        if self.skip < 0:
            raise OptionError(f"--skip is {self.skip}, but at least 0 lines are left out.")


def fields_of(line: str, dialect: Dialect) -> list[str]:
    """Split one line as the dialect says."""
    quote = dialect.quote or None
    reader = csv.reader(
        [line],
        delimiter=dialect.delimiter or ",",
        quotechar=quote,
        escapechar=dialect.escape,
        quoting=csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE,
    )
    return next(reader, [])


def _count_fields(line: str, dialect: Dialect) -> int:
    try:
        return len(fields_of(line, dialect))
    except csv.Error:  # a part of a value that goes over several lines, or an overlong one
        return 0


def is_number(text: str, decimal: str = ".") -> bool:
    """Whether a field is a number (a missing one counts as a number)."""
    text = text.strip().replace(decimal, ".")
    if not text or text == "?":
        return True
    try:
        float(text)
    except ValueError:
        return False
    return True


def settle(dialect: Dialect, lines: list[str]) -> Dialect:
    """Fill in what the user left open, from the first lines of the file (header included)."""
    if dialect.delimiter is None:
        dialect = replace(dialect, delimiter=_find_delimiter(dialect, lines))
    if dialect.header is None:
        first = fields_of(lines[0], dialect) if lines else []
        dialect = replace(dialect, header=not all(is_number(field, dialect.decimal) for field in first))
    return dialect


def _find_delimiter(dialect: Dialect, lines: list[str]) -> str:
    """The candidate that splits the most lines into the same number of fields as the first; more fields win ties."""

    def score(delimiter: str) -> tuple[int, int]:
        if delimiter == dialect.decimal:
            return (0, 0)
        counts = [_count_fields(line, replace(dialect, delimiter=delimiter)) for line in lines]
        agreeing = sum(count == counts[0] for count in counts)
        return (agreeing if counts[0] > 1 else 0, counts[0])

    return max(DELIMITERS, key=score) if lines else ","
