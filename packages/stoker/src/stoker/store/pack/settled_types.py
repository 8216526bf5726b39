"""Types that hold all values of text, found by reading all rows, where those of the first block are too narrow.

settled_schema   the types of all columns
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from stoker.store.formats.base import DataSource, RowLocation, is_list
from stoker.store.pack.column_types import asked_type, plain_type, unify_types
from stoker.store.pack.misfits import misfit_error
from stoker.store.pack.options import PackOptions


def settled_schema(
    sources: Sequence[DataSource],
    schema: pa.Schema,
    options: PackOptions,
    report: Callable[[int], None] = lambda num_rows: None,
    *,
    gaps: bool = True,
    others: Sequence[DataSource] = (),
) -> pa.Schema:
    """Read all rows of sources of one schema, and give the types that hold all values.

    With `gaps`, columns with missing values have types that can store them. `report` gets the rows of each chunk. An error for a word
    among numbers names those of `others` too.
    """
    types = dict(zip(schema.names, schema.types, strict=True))
    with_gaps: set[str] = set()
    for source in sources:
        for task in source.read(schema if source.typed else None, start=RowLocation(), chunk_bytes=options.chunk_bytes):
            table = task().table
            for name, kind in types.items():
                column = table.column(name)
                if source.typed or not pa.types.is_string(kind):  # of text that is words, some blocks may look like numbers
                    is_text = not source.typed and pa.types.is_string(column.type)
                    now = column.type if is_text else asked_type(column.type, options.dtypes.get(name))
                    settled = unify_types(kind, now, inferred=not source.typed)
                    if settled is None:
                        raise misfit_error(list(dict.fromkeys([*sources, *others])), name, types, options.dtypes)
                    types[name] = settled
                if column.null_count or any(is_list(chunk.type) and chunk.flatten().null_count for chunk in column.chunks):
                    with_gaps.add(name)
            report(table.num_rows)
    filled = with_gaps - {options.series} if gaps else set()
    return pa.schema([(name, _nullable(kind) if name in filled else kind) for name, kind in types.items()])


def _nullable(kind: pa.DataType) -> pa.DataType:
    """Integers and booleans with missing values become float64; values that it cannot hold are refused later."""
    if is_list(kind):
        return pa.large_list(_nullable(kind.value_type))
    value = plain_type(kind)
    return pa.float64() if pa.types.is_integer(value) or pa.types.is_boolean(value) else kind
