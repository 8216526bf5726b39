"""What the strings of a text table mean: numbers, times, or words.

A column whose values are mostly numbers is a column of numbers: a word in it is an error that names it, and never makes codes of a
category of all the numbers. The same for times. "Mostly" is more than half of the rows that are not missing, or of the different
strings among them: a sensor that says "off" most of the time is still a column of numbers.

    mostly            what a column of strings is
    is_strange        strings that only Arrow reads as numbers: `0x1F` and `nan(5)`
    MOSTLY            the key under which the schema of a reader has its columns of strings that are mostly numbers or times

Readers find the rows of words (`find_misfits`); pack/misfits.py names them.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from stoker.store.arrow import from_texts

NULL_TEXTS: tuple[str, ...] = tuple(pa_csv.ConvertOptions().null_values)
MOSTLY = b"stoker.mostly"

_NUMBER = r"^[ \t]*[+-]?(?:\d+{0}?\d*|{0}\d+)(?:[eE][+-]?\d+)?[ \t]*$"
_TIME = r"^[ \t]*\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?[ \t]*$"
_STRANGE = r"0[xX]|[nN][aA][nN]\("
_STRANGE_MARKS = {b"x": (b"0x",), b"X": (b"0X",), b"(": (b"n(", b"N(")}

Meaning = Literal["numbers", "times"]


def meanings(texts: pa.Array, *, decimal: str = ".", time_format: str | None = None) -> dict[Meaning, pa.Array]:
    """Return which strings are numbers, and which are times."""
    number = _NUMBER.format(r"\." if decimal == "." else decimal)
    if time_format is None:
        times = pc.match_substring_regex(texts, _TIME)
    else:
        times = pc.is_valid(pc.strptime(texts, time_format, "s", error_is_null=True))
    return {"numbers": pc.match_substring_regex(texts, number), "times": times}


def mostly(
    texts: pa.Array | pa.ChunkedArray, *, null: Sequence[str] = (), decimal: str = ".", time_format: str | None = None
) -> tuple[Meaning, pa.Array] | None:
    """Return what most strings of a column are, with the different ones; None if most are words."""
    missing = pc.is_in(texts, value_set=from_texts([*NULL_TEXTS, *null]).cast(texts.type))
    known = texts.filter(pc.invert(pc.or_kleene(missing, pc.is_null(texts))))
    different = known.unique()
    for values in (known, different):
        for meaning, mask in meanings(values, decimal=decimal, time_format=time_format).items():
            if 2 * (pc.sum(mask).as_py() or 0) > len(values):
                return meaning, different.filter(meanings(different, decimal=decimal, time_format=time_format)[meaning])
    return None


def type_of(texts: pa.Array | pa.ChunkedArray, conversion: pa_csv.ConvertOptions) -> pa.DataType:
    """Return the type that Arrow infers for strings that are all numbers, or all times."""
    lines = "value\n" + "\n".join(text.strip() for text in texts.to_pylist()) + "\n"
    return pa_csv.read_csv(io.BytesIO(lines.encode()), convert_options=conversion).schema.field("value").type


def may_be_strange(data: bytes) -> bool:
    """Whether a block of text may hold a strange number. Most hold none, and are not searched further."""
    # A search for one rare byte is at memory speed; a search for "0x" stops at every zero.
    return any(rare in data and any(mark in data for mark in marks) for rare, marks in _STRANGE_MARKS.items())


def is_strange(texts: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Which strings Arrow reads as a hexadecimal number, or as NaN with a payload."""
    return pc.fill_null(pc.match_substring_regex(texts, _STRANGE), False)


def with_mostly(schema: pa.Schema, types: Mapping[str, pa.DataType]) -> pa.Schema:
    """Return a schema that says which columns of strings are mostly of another type."""
    if not types:
        return schema
    kinds = pa.schema(list(types.items())).serialize().to_pybytes()
    return schema.with_metadata({MOSTLY: kinds})


def mostly_types(schema: pa.Schema) -> dict[str, pa.DataType]:
    """Return the columns of strings that are mostly of another type, by `with_mostly`."""
    kinds = (schema.metadata or {}).get(MOSTLY)
    if kinds is None:
        return {}
    mostly = pa.ipc.read_schema(pa.py_buffer(kinds))
    return dict(zip(mostly.names, mostly.types, strict=True))
