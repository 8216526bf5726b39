"""Stores: immutable, memory-mapped columns of ragged series, packed from raw files.

The common names are in `stoker` itself: `stoker.pack`, `stoker.open`, `stoker.inspect`, `stoker.verify` and `stoker.Store`. The
names here are for code that reads raw tables or writes stores of its own; each is imported when first used.

    raw tables     find_sources -> DataSource -> make_plan, read_ahead
    a new store    new_store, make_work, ColumnFile -> Manifest
    values         to_numpy, from_numpy, from_texts, decimals_as_floats
    object storage upload -> RemoteStore, Traffic
"""

from typing import TYPE_CHECKING

from stoker._lazy import lazy

_NAMES = {
    "stoker.store.append": "add_column",
    "stoker.store.arrow": "decimals_as_floats from_numpy from_texts lay_texts to_numpy",
    "stoker.store.formats.base": "Chunk DataSource InferredTypeError ReadLimits RowLocation Task WrappedSource inside is_list row_chunk",
    "stoker.store.formats.csv": "Csv",
    "stoker.store.formats.discover": "Files TableSource find_sources",
    "stoker.store.formats.json_text": "RowTexts",
    "stoker.store.formats.jsonl": "JsonRows",
    "stoker.store.inspect": "StoreSummary VerifyResult",
    "stoker.store.manifest": "BLOCK_BYTES MANIFEST_NAME WORK_NAME ColumnEntry Manifest NonFinite Shard SourceEntry Text",
    "stoker.store.pack.options": "DEFAULT_MEMORY Missing PackOptions Resources Time parse_names parse_threads",
    "stoker.store.pack.packer": "Packer Progress quiet",
    "stoker.store.pack.column_types": "plain_type settled_schema unify_types",
    "stoker.store.pack.plan": "PackPlan make_plan read_table",
    "stoker.store.pack.series_columns": "encode_table",
    "stoker.store.pack.sorted_runs": "read_ahead",
    "stoker.store.pack.values": "one_array",
    "stoker.store.object_storage": "Traffic",
    "stoker.store.remote": "RemoteStore upload",
    "stoker.store.shards": "MISSING_CODE MISSING_TIME Column ColumnFile ColumnMark Level NonFiniteCount TextFile Texts map_shard",
    "stoker.store.store": "Series Store store_from_arrays",
    "stoker.store.opening": "open_store",
    "stoker.store.writer": "check_target make_work new_store",
}

if TYPE_CHECKING:
    # isort: off
    from stoker.store.append import add_column as add_column
    from stoker.store.formats.base import Chunk as Chunk, DataSource as DataSource, InferredTypeError as InferredTypeError
    from stoker.store.formats.base import ReadLimits as ReadLimits, RowLocation as RowLocation, Task as Task
    from stoker.store.formats.base import WrappedSource as WrappedSource, inside as inside, is_list as is_list
    from stoker.store.formats.base import row_chunk as row_chunk
    from stoker.store.formats.csv import Csv as Csv
    from stoker.store.formats.discover import Files as Files, TableSource as TableSource, find_sources as find_sources
    from stoker.store.formats.json_text import RowTexts as RowTexts
    from stoker.store.formats.jsonl import JsonRows as JsonRows
    from stoker.store.inspect import StoreSummary as StoreSummary, VerifyResult as VerifyResult
    from stoker.store.arrow import decimals_as_floats as decimals_as_floats
    from stoker.store.manifest import MANIFEST_NAME as MANIFEST_NAME, WORK_NAME as WORK_NAME
    from stoker.store.manifest import BLOCK_BYTES as BLOCK_BYTES, ColumnEntry as ColumnEntry, Manifest as Manifest
    from stoker.store.manifest import NonFinite as NonFinite, Shard as Shard, SourceEntry as SourceEntry, Text as Text
    from stoker.store.object_storage import Traffic as Traffic
    from stoker.store.pack.options import DEFAULT_MEMORY as DEFAULT_MEMORY, Missing as Missing, PackOptions as PackOptions
    from stoker.store.pack.options import Resources as Resources, Time as Time
    from stoker.store.pack.options import parse_names as parse_names, parse_threads as parse_threads
    from stoker.store.pack.packer import Packer as Packer, Progress as Progress, quiet as quiet
    from stoker.store.pack.plan import PackPlan as PackPlan, make_plan as make_plan
    from stoker.store.pack.column_types import plain_type as plain_type
    from stoker.store.pack.plan import read_table as read_table
    from stoker.store.pack.column_types import settled_schema as settled_schema, unify_types as unify_types
    from stoker.store.pack.series_columns import encode_table as encode_table
    from stoker.store.pack.sorted_runs import read_ahead as read_ahead
    from stoker.store.pack.values import one_array as one_array
    from stoker.store.remote import RemoteStore as RemoteStore, upload as upload
    from stoker.store.shards import MISSING_CODE as MISSING_CODE, MISSING_TIME as MISSING_TIME, Column as Column
    from stoker.store.shards import (
        ColumnFile as ColumnFile,
        ColumnMark as ColumnMark,
        Level as Level,
        NonFiniteCount as NonFiniteCount,
    )
    from stoker.store.shards import TextFile as TextFile, Texts as Texts, map_shard as map_shard
    from stoker.store.arrow import from_numpy as from_numpy, from_texts as from_texts, lay_texts as lay_texts
    from stoker.store.arrow import to_numpy as to_numpy
    from stoker.store.store import Series as Series, Store as Store, store_from_arrays as store_from_arrays
    from stoker.store.opening import open_store as open_store
    from stoker.store.writer import check_target as check_target, make_work as make_work
    from stoker.store.writer import new_store as new_store
    # isort: on
else:
    # Hidden from type checkers: a module with __getattr__ would have every name, misspelt ones too.
    __getattr__, __dir__, __all__ = lazy(
        __name__, {name: f"{module}:{name}" for module, names in _NAMES.items() for name in names.split()}
    )
