"""The header of an `.arff` file: its attributes, and how a line of data is cut into fields."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["number", "nominal", "text", "moment", "relation"]

MAX_ATTRIBUTES = 1 << 18
"""Of the whole file. The longest series of the UEA archive has 236,784 steps, each an attribute."""
MAX_VALUES = 1 << 16
"""Values that all nominal attributes list together."""
_NAME = r"""('(?:[^'\\]++|\\.)*+'|"(?:[^"\\]++|\\.)*+"|[^\s{]++)"""
_ATTRIBUTE = re.compile(rf"@attribute\s+{_NAME}\s*(.+)", re.IGNORECASE)
_ISO_FORMATS = frozenset({"", "yyyy-MM-dd'T'HH:mm:ss", "yyyy-MM-dd HH:mm:ss", "yyyy-MM-dd"})
_FIELD = re.compile(rb"""\s*+('(?:[^'\\]++|\\.)*+'|"(?:[^"\\]++|\\.)*+"|[^,'"]*+)\s*+(,|$)""", re.DOTALL)  # possessive: linear
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


class HeaderFault(ValueError):
    """A line of the header that breaks a rule, by its number."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(reason)
        self.number = number
        self.reason = reason


@dataclass(slots=True)
class Attribute:
    """One column: nominal ones list their values, relational ones their own attributes."""

    name: str
    kind: Kind
    values: frozenset[str] = frozenset()
    inner: list[Attribute] | None = None


def parse_header(lines: Iterable[tuple[int, str, int]]) -> tuple[list[Attribute], int]:
    """The attributes, and the position behind the line '@data'."""
    attributes: list[Attribute] = []
    relation: Attribute | None = None
    num_attributes = num_values = 0
    for number, line, end in lines:
        tag = line.split(None, 1)[0].lower()
        if tag == "@data":
            if relation is not None:
                raise HeaderFault(number, f"the relational attribute {relation.name!r} has no '@end'")
            return attributes, end
        if tag == "@attribute":
            found = _attribute(number, line, MAX_VALUES - num_values)
            (attributes if relation is None or relation.inner is None else relation.inner).append(found)
            if found.kind == "relation":
                if relation is not None:
                    raise HeaderFault(number, "a relational attribute within another cannot be read")
                relation, found.inner = found, []
            num_attributes, num_values = num_attributes + 1, num_values + len(found.values)
            if num_attributes > MAX_ATTRIBUTES:
                raise HeaderFault(number, f"more than {MAX_ATTRIBUTES:,} attributes")
        elif tag == "@end":
            if relation is None:
                raise HeaderFault(number, "'@end' without a relational attribute before it")
            relation = None
        elif tag != "@relation":
            raise HeaderFault(number, f"expected '@relation', '@attribute' or '@data', found {line[:40]!r}")
    raise AssertionError("the lines of a header end with an error or with @data")


def _attribute(number: int, line: str, max_values: int) -> Attribute:
    match = _ATTRIBUTE.fullmatch(line)
    if match is None:
        raise HeaderFault(number, f"expected '@attribute name type', found {line[:60]!r}")
    name, declared = unquote(match[1]), match[2].strip()
    word, _, rest = declared.partition(" ")
    if declared.startswith("{"):
        if not declared.endswith("}"):
            raise HeaderFault(number, f"the values of {name!r} do not end with '}}'")
        fields = split_fields(declared[1:-1].encode(), max_values)
        if fields is None:
            raise HeaderFault(number, f"the values of {name!r} have a quote that is not closed")
        if len(fields) > max_values:
            raise HeaderFault(number, f"nominal attributes up to {name!r} list more than {MAX_VALUES:,} values")
        return Attribute(name, "nominal", frozenset(unquote(value.decode()) for value in fields))
    if word.lower() in ("numeric", "real", "integer"):
        return Attribute(name, "number")
    if word.lower() == "string":
        return Attribute(name, "text")
    if word.lower() == "date":
        return Attribute(name, "moment" if unquote(rest.strip()) in _ISO_FORMATS else "text")
    if word.lower() == "relational":
        return Attribute(name, "relation")
    raise HeaderFault(number, f"the attribute {name!r} has the type {declared[:40]!r}, which is not known")


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
