"""Files of a table: one, or several that together are one table, its partitions.

find_files      what a path, a folder, a pattern or a list of these names, in order
read_files      all of them as one Arrow table
"""

from __future__ import annotations

import contextlib
import glob
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from stoker import store
from stoker.errors import BadValueError, OptionError, SourceEmptyError, SourceInvalidError, SourceNotFoundError

SUFFIXES = (".parquet", ".csv", ".arrow", ".feather")
INDEX = r"__index_level_\d+__"


def check_names(names: Sequence[str], what: str) -> None:
    """Raise an error for a name that two columns have."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise OptionError(f"{what} has more than one column {twice[0]!r}. Rename or drop one of them.")


def are_files(given: Any) -> bool:
    """Whether a table is given as a path, or as a list of paths."""
    many = list(given) if isinstance(given, list | tuple) else [given]
    return bool(many) and all(isinstance(one, str | Path) for one in many)


def find_files(given: str | Path | Sequence[str | Path], what: str) -> list[Path]:
    """The files of a table: in the order of a list, those of a folder or a pattern sorted.

    Args:
        given: A file, a folder, a pattern such as "events/*.parquet", or a list of these.
        what: The name of the parameter, for messages.

    Raises:
        OptionError: A file has another ending, or some are CSV and others are not.
        SourceError: There is no such file.
    """
    found: list[Path] = []
    for one in [given] if isinstance(given, str | Path) else given:
        path = Path(one)
        if not path.is_dir() and not glob.has_magic(str(path)):
            if path.suffix not in SUFFIXES:
                raise OptionError(f"{what} is {path}; expected a file that ends in {', '.join(SUFFIXES)}.")
            if not path.is_file():
                raise SourceNotFoundError(f"there is no file {path}. Give another one.")
            found.append(path)
            continue
        sources = store.find_sources(str(path), table=True)
        own = [source.path for source in sources if source.path is not None and source.path.suffix in SUFFIXES]
        if not own:
            raise SourceEmptyError(f"{path} has no file that ends in {', '.join(SUFFIXES)}. Give another folder.")
        found += own
    endings = sorted({path.suffix for path in found})
    if len(endings) > 1 and ".csv" in endings:
        raise OptionError(
            f"{what} has files that end in {' and in '.join(endings)}; expected one kind. Name those of one table, such as "
            f"'{found[-1].parent}/*{found[-1].suffix}'."
        )
    return list(dict.fromkeys(found))


def name_of(given: Any, what: str) -> str:
    """What messages call a table: its file or folder, or the name of the parameter."""
    return str(given) if isinstance(given, str | Path) else what


def place_of(given: Any, what: str, row: int) -> tuple[str, int]:
    """The file that a row of a table is in, and its number there."""
    for path in find_files(given, what) if are_files(given) else []:
        count = _count(path)
        if row < count:
            return str(path), row
        row -= count
    return what, row


def read_files(files: Sequence[Path]) -> pa.Table:
    """Files as one table.

    Raises:
        SourceError: A file cannot be read, or has other columns than the first one.
    """
    if len(files) == 1:
        return _read(files[0])
    tables = [_read(path) for path in files]
    schema = join_schemas(files, [table.schema for table in tables])
    return pa.concat_tables([table.select(schema.names).cast(schema) for table in tables]).unify_dictionaries()


def join_schemas(files: Sequence[Path], schemas: Sequence[pa.Schema]) -> pa.Schema:
    """The columns that all files have; a column without any value in one of them has the type of the others.

    Raises:
        BadValueError: Columns or their types differ.
    """
    found = {field.name: (files[0], field.type) for field in schemas[0]}
    for path, schema in zip(files, schemas, strict=True):
        check_names(schema.names, str(path))
        for one, other, name in (
            *((path, files[0], name) for name in found if name not in schema.names),
            *((files[0], path, name) for name in schema.names if name not in found),
        ):
            raise BadValueError(f"{one} has no column {name!r}, which {other} has. Give files with the same columns.")
        for name, (first, kind) in found.items():
            joined = _join_types(kind, schema.field(name).type)
            if joined is None:
                raise BadValueError(
                    f"column {name!r} is of the type {schema.field(name).type} in {path}, but of the type {kind} in {first}. "
                    f"Convert one of them."
                )
            found[name] = (path if pa.types.is_null(kind) else first, joined)
    return pa.schema([(name, kind) for name, (_, kind) in found.items()])


def _join_types(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    if pa.types.is_null(one) or pa.types.is_null(other) or one == other:
        return other if pa.types.is_null(one) else one
    if all(map(pa.types.is_dictionary, (one, other))):
        inner = _join_types(one.value_type, other.value_type)
        return inner and pa.dictionary(pa.int32(), inner)  # files may need indices of different widths
    is_text = all(pa.types.is_string(kind) or pa.types.is_large_string(kind) for kind in (one, other))
    return pa.large_string() if is_text else None


def _read(path: Path) -> pa.Table:
    """A file as a table."""
    from pyarrow import csv, feather, parquet

    try:
        if path.suffix == ".csv":
            return csv.read_csv(str(path))
        table = (parquet if path.suffix == ".parquet" else feather).read_table(str(path))
    except (pa.ArrowException, OSError) as error:
        if path.suffix == ".parquet":
            with contextlib.suppress(pa.ArrowException, OSError):  # the error above says more
                check_names(parquet.read_schema(str(path)).names, str(path))
        reason = " ".join(str(error).split()).rstrip(".")
        raise SourceInvalidError(f"{path} cannot be read: {reason}. Is it a {path.suffix} file? Give another one.") from error
    # Files of pandas may hold the row numbers of a frame as a column.
    return plain(table.drop_columns([name for name in table.column_names if re.fullmatch(INDEX, name)]))


def _count(path: Path) -> int:
    """The number of rows of a file that can be read."""
    from pyarrow import parquet

    return int(parquet.read_metadata(str(path)).num_rows) if path.suffix == ".parquet" else len(_read(path))


def plain(table: pa.Table) -> pa.Table:
    """The same table with strings that Arrow can select rows of."""
    if any(pa.types.is_string_view(kind) for kind in table.schema.types):
        fields = [field.with_type(pa.string()) if pa.types.is_string_view(field.type) else field for field in table.schema]
        table = table.cast(pa.schema(fields))
    return table
