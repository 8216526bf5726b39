"""Files and frames as Arrow tables, and back.

read_table      all that `stoker.pack` takes: files, of which several are one table, and frames of pandas, Polars or Arrow
to_frame        a table as a frame of the same kind             write_table     a frame as a file
key_column      the keys of a table                             place_of        the file that a row is from, for messages
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from stoker import store
from stoker.errors import BadValueError, OptionError, SourceInvalidError
from stoker.extend import disk
from stoker_recipes.tabular import analyze
from stoker_recipes.tabular.values import read_values

INDEX = r"__index_level_\d+__"
"""The names of columns in which files of pandas hold the row numbers of a frame."""


def read_table(source: Any, what: str) -> tuple[pa.Table, str]:
    """A table, and the kind of frame it was: "arrow", "pandas" or "polars".

    Args:
        source: Files (a path, a folder, a pattern, or a list of them), a frame of pandas, Polars or Arrow, or a dict of columns. The index
            of a frame is not part of it.
        what: The name of the parameter, for messages.

    Raises:
        OptionError: It is none of these.
        SourceError: A file or a frame cannot be read.
    """
    module = type(source).__module__.partition(".")[0]
    frame = module if module in ("pandas", "polars") and not are_files(source) else "arrow"
    if frame == "pandas" and hasattr(source, "columns"):
        check_names(list(map(str, source.columns)), what)
        source = source.reset_index(drop=True)
    try:
        table = source if isinstance(source, pa.Table) else store.read_table(source)
    except SourceInvalidError as error:
        raise BadValueError(f"{what} cannot be read: {_reason(source, error)}") from error
    except OptionError as error:
        raise OptionError(f"{what} cannot be read: {error}", path=error.path) from None
    table = table.drop_columns([name for name in table.column_names if re.fullmatch(INDEX, name)])
    if any(pa.types.is_string_view(kind) for kind in table.schema.types):  # of which Arrow cannot select rows
        fields = [field.with_type(pa.string()) if pa.types.is_string_view(field.type) else field for field in table.schema]
        table = table.cast(pa.schema(fields))
    return table.replace_schema_metadata(None), frame


def _reason(source: Any, error: SourceInvalidError) -> str:
    """Why a source is not a table, with the column and the row where there is one."""
    try:
        analyze(source)  # which looks for them
    except BadValueError as reason:
        return str(reason)
    except SourceInvalidError:
        pass
    return str(error)


def are_files(source: Any) -> bool:
    """Whether a table is given as a path, or as a list of paths."""
    many = list(source) if isinstance(source, list | tuple) else [source]
    return bool(many) and all(isinstance(path, str | Path) for path in many)


def name_of(source: Any, what: str) -> str:
    """What messages call a table: its file or folder, or the name of the parameter."""
    return str(source) if isinstance(source, str | Path) else what


def place_of(source: Any, what: str, row: int) -> tuple[str, int]:
    """The file that a row of a table is in, and its number there."""
    for file in store.find_sources(source, table=True) if are_files(source) else []:
        count = len(store.read_table([file]))
        if row < count:
            return file.label, row
        row -= count
    return what, row


def check_values(source: Any, what: str) -> None:
    """Raise an error for a value that cannot be learned, with its file and the row there: encodings know the order of subjects only."""
    for file in store.find_sources(source, table=True) if are_files(source) else [source]:
        table = store.read_table([file]) if are_files(source) else read_table(source, what)[0]
        for name in table.column_names:
            try:
                read_values(name, table[name])
            except BadValueError as error:
                raise BadValueError(f"{file.label if are_files(source) else what}, {error}") from None


def check_names(names: Sequence[str], what: str) -> None:
    """Raise an error for a name that two columns have."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise OptionError(f"{what} has more than one column {twice[0]!r}. Rename or drop one of them.")


def key_column(
    table: pa.Table, key: str, what: str, *, option: str = "key", place: Callable[[int], tuple[str, int]] | None = None
) -> pa.Array:
    """The column of keys, as one array; a missing key is an error. `option` is the one that names it."""
    check_names(table.column_names, what)
    if key not in table.column_names:
        raise OptionError(
            f"{what} has no column {key!r}; it has {', '.join(map(repr, table.column_names))}. Name one of them: {option}=…",
            column=key,
        )
    column = table[key].combine_chunks()
    column = column if isinstance(column, pa.Array) else (column.chunk(0) if column.num_chunks else pa.array([], column.type))
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_nested(column.type):
        raise BadValueError(f"{key} of {what} is of the type {column.type}; expected numbers, strings or dates. Convert it.")
    missing = column.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
    if missing.any():
        row = int(np.flatnonzero(missing)[0])
        where, number = place(row) if place is not None else (what, row)
        raise BadValueError(f"{where}, row {number:,}: the {key} is missing; expected one for each row. Fill it, or drop the row.")
    return column


def to_frame(table: pa.Table, frame: str) -> Any:
    """The table as a frame of this kind."""
    if frame == "pandas":
        import pandas as pd  # type: ignore[import-untyped, unused-ignore]

        converted = table.to_pandas()
        for field, column in zip(table.schema, table.columns, strict=True):
            if column.null_count and (pa.types.is_integer(field.type) or pa.types.is_boolean(field.type)):
                kind = "boolean" if pa.types.is_boolean(field.type) else str(field.type).replace("i", "I").replace("u", "U")
                converted[field.name] = pd.array(column.to_pylist(), dtype=kind)  # they stay what they are
        return converted
    if frame == "polars":
        import polars

        return polars.from_arrow(table)
    return table


def write_table(frame: Any, path: Path) -> None:
    """Write a frame as .parquet or .csv; a reader finds the old file or the whole new one."""
    from pyarrow import csv, parquet

    table, _ = read_table(frame, "frame")
    sink = pa.BufferOutputStream()
    with (
        csv.CSVWriter(sink, table.schema)
        if path.suffix == ".csv"
        else parquet.ParquetWriter(sink, table.schema, compression="zstd")
    ) as writer:
        writer.write(table)
    disk.write_file(path, sink.getvalue())
