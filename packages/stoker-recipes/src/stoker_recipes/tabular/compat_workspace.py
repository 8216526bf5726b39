"""The workspace of mostlyai-engine: its files, and the codes of its columns.

OriginalData/tgt-data, ctx-data       part.000000-trn.parquet, part.000000-val.parquet, ...    the rows
OriginalData/tgt-meta, ctx-meta       encoding-types.json, keys.json
OriginalData/encoded-data             part.*.parquet: one row per subject, sequences as lists
ModelStore/tgt-stats, ctx-stats       stats.json
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from stoker.errors import OptionError, SourceInvalidError
from stoker.extend import Array, disk
from stoker_recipes.tabular import parse_dates, parse_numbers
from stoker_recipes.tabular.compat_encodings import KINDS, encode_values, range_of
from stoker_recipes.tabular.layout import position_sizes
from stoker_recipes.tabular.values import Values, is_text, read_values

Role = Literal["tgt", "ctx"]
FILLED = ("TABULAR_NUMERIC_DIGIT", "TABULAR_DATETIME")
"""The encodings with a sub-column for missing values, whose other sub-columns are filled."""


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """Where everything is."""

    folder: Path

    def data(self, role: Role) -> Path:
        """The rows of a table."""
        return self.folder / "OriginalData" / f"{role}-data"

    def meta(self, role: Role, name: str) -> Path:
        """A file about a table: "keys" or "encoding-types"."""
        return self.folder / "OriginalData" / f"{role}-meta" / f"{name}.json"

    def stats(self, role: Role) -> Path:
        """The statistics of a table."""
        return self.folder / "ModelStore" / f"{role}-stats" / "stats.json"

    @property
    def encoded(self) -> Path:
        """The codes of all subjects."""
        return self.folder / "OriginalData" / "encoded-data"

    def read(self, path: Path, step: str) -> dict[str, Any]:
        """Read a JSON file that an earlier step writes; raises an error that names the step."""
        try:
            return dict(json.loads(path.read_bytes()))
        except FileNotFoundError:
            raise OptionError(f"{self.folder} has no {path.relative_to(self.folder)}. Call compat.{step}(...) first.") from None
        except ValueError as error:
            raise SourceInvalidError(f"{path} is damaged: {error}.") from error

    def parts(self) -> list[Path]:
        """The parts of the target table, sorted by name."""
        paths = sorted(self.data("tgt").glob("part.*.parquet"))
        if not paths:
            raise OptionError(f"{self.data('tgt')} has no part.*.parquet. Call compat.split(...) first.")
        return paths


def write_json(path: Path, data: Any) -> None:
    """Write a JSON file as mostlyai-engine does."""
    disk.make_folder(path.parent)
    disk.write_file(path, json.dumps(data, ensure_ascii=False, indent=4).encode())


def write_parquet(path: Path, table: pa.Table) -> None:
    """Write a Parquet file; a reader finds the old file or the whole new one."""
    from pyarrow import parquet

    sink = pa.BufferOutputStream()
    with parquet.ParquetWriter(sink, table.schema) as writer:
        writer.write(table)
    disk.make_folder(path.parent)
    disk.write_file(path, sink.getvalue())


def read_parquet(path: Path) -> pa.Table:
    """Read a Parquet file."""
    from pyarrow import parquet

    try:
        return parquet.read_table(io.BytesIO(path.read_bytes()))
    except (pa.ArrowInvalid, OSError) as error:
        raise SourceInvalidError(f"{path} cannot be read: {error}.") from error


def empty_folder(folder: Path) -> None:
    """Remove the files of an earlier run."""
    for path in folder.glob("*"):
        if path.is_file():
            disk.remove_file(path)


# ---- columns ----


def read_column(name: str, column: pa.ChunkedArray | pa.Array, kind: str) -> pa.Array:
    """A column as its encoding reads it: strings, int64 or float64, or microseconds in UTC.

    Raises:
        OptionError: The encoding is unknown.
        BadValueError: A value cannot be used.
    """
    if kind not in KINDS:
        raise OptionError(f"column {name!r} has the encoding {kind!r}; expected one of {', '.join(KINDS)}.")
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    read_values(name, array.slice(0, 0))  # lists and others are refused by name
    return {"text": _to_text, "number": _to_number, "time": _to_time}[KINDS[kind]](name, array)


def _to_text(name: str, array: pa.Array) -> pa.Array:
    kind = array.type
    if is_text(kind) or pa.types.is_null(kind):
        return array.cast(pa.string())
    if pa.types.is_floating(kind):  # each with the digits that its type distinguishes
        numbers = array.fill_null(float("nan")).to_numpy(zero_copy_only=False)
        return pa.array([None if number != number else str(number) for number in numbers], pa.string())
    if pa.types.is_timestamp(kind):
        texts = _to_time(name, array).cast(pa.string()).to_pylist()
        for nothing in (".000000", " 00:00:00"):  # what all of them have
            if all(text is None or text.endswith(nothing) for text in texts):
                texts = [None if text is None else text.removesuffix(nothing) for text in texts]
        return pa.array(texts, pa.string())
    return pa.array([None if value is None else str(value) for value in array.to_pylist()], pa.string())


def _to_number(name: str, array: pa.Array) -> pa.Array:
    kind = array.type
    if is_text(kind):
        array = parse_numbers(array)
        kind = array.type
    if pa.types.is_boolean(kind):
        return array.cast(pa.int8()).cast(pa.int64())
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind):
        values = read_values(name, array.cast(pa.float64()))
        return pa.array(values.data.astype(np.float64), mask=~values.valid)
    try:
        return array.cast(pa.int64())
    except pa.ArrowInvalid:  # uint64
        return array.cast(pa.float64(), safe=False)


def _to_time(name: str, array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_null(kind):
        return array.cast(pa.timestamp("us"))
    if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        return parse_dates(array, name)
    values = read_values(name, array)
    unit = "D" if pa.types.is_date32(kind) else "ms" if pa.types.is_date64(kind) else kind.unit
    micros = values.data // 1000 if unit == "ns" else values.data * {"D": 86_400_000_000, "s": 10**6, "ms": 1000, "us": 1}[unit]
    return pa.array(micros, mask=~values.valid).cast(pa.timestamp("us"))


def _values_of(name: str, column: pa.ChunkedArray, kind: str, *, min_decimal: int) -> Values:
    """The values of a column, for its encoding; with `min_decimal` from 0 they are rounded to integers."""
    array = read_column(name, column, kind)
    if min_decimal >= 0 and kind != "TABULAR_NUMERIC_BINNED" and pa.types.is_floating(array.type):
        values = read_values(name, array)
        if np.abs(values.data).max(initial=0) < 2**63:
            array = pa.array(np.rint(values.data).astype(np.int64), mask=~values.valid)
    is_words = KINDS[kind] == "text" or kind == "TABULAR_NUMERIC_DISCRETE"
    return read_values(name, array, family="text" if is_words else None)


def codes_of_column(name: str, column: pa.ChunkedArray, entry: Mapping[str, Any], order: Array, starts: Array) -> Array:
    """The codes of a column, as `encode` of mostlyai-engine has them.

    What belongs to a missing value is drawn from the values of the column, with `np.random`.

    Args:
        name: The column.
        column: Its values, in the order of the file.
        entry: Its entry in stats.json.
        order: The rows of the result: those of a subject side by side.
        starts: The first row of each subject, in that order.
    """
    kind = entry["encoding_type"]
    values = _values_of(name, column, kind, min_decimal=entry.get("min_decimal", -1))
    if kind == "TABULAR_DATETIME_RELATIVE":
        sorted_values = Values(family="time", data=values.data[order], valid=values.valid[order])
        return encode_values(entry, sorted_values, starts)
    if kind not in FILLED:
        return encode_values(entry, values, starts)[order]
    codes = encode_values(entry, _fill(values, range_of(entry)), starts)
    if entry["has_nan"]:
        codes[:, list(entry["cardinalities"]).index("nan")] = ~values.valid
    return codes[order]


def _fill(values: Values, limits: tuple[Any, ...] | None) -> Values:
    """Return values within the limits, with random ones of the same column where they are missing."""
    valid, data = values.valid, values.data
    if limits is not None:
        data = np.clip(data, *limits).astype(data.dtype)
    if valid.any() and not valid.all():
        distinct, first, counts = np.unique(data[valid], return_index=True, return_counts=True)
        by_count = np.lexsort((first, -counts))  # the most frequent first, ties by their first row
        chances = counts[by_count] / counts.sum()
        data = data.copy()
        data[~valid] = distinct[by_count][np.random.choice(len(distinct), size=int((~valid).sum()), p=chances)]
        valid = np.ones(len(data), bool)
    return Values(family=values.family, data=data, valid=valid, words=values.words)


def position_columns(lengths: Array, max_length: int) -> dict[str, Array]:
    """The codes of positions, for sequences of which each has one more step, the end."""
    steps = lengths + 1
    total = np.repeat(lengths, steps)
    position = np.arange(steps.sum()) - np.repeat(np.cumsum(steps) - steps, steps)
    numbers = {"sidx": position, "slen": total, "ridx": total - position}
    found = {}
    for name in position_sizes(max_length):
        place = name.rpartition("_")[2]
        number = numbers[name[:4]]
        found[f"tgt:/__{name}"] = number if place == "cat" else number // 10 ** int(place[1:]) % 10
    return found


def column_names(entry: Mapping[str, Any]) -> list[str]:
    """The names of the sub-columns of a column, as the model has them."""
    base = f"{entry['argn_processor']}:{entry['argn_table']}/{entry['argn_column']}"
    return [f"{base}__{name}" for name in entry["cardinalities"]]
