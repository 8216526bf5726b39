"""Stores: immutable, memory-mapped columns of ragged series, packed from raw files.

The common names are in `stoker` itself: `stoker.pack`, `stoker.open`, `stoker.inspect`, `stoker.verify` and `stoker.Store`. The
names here are for formats and recipes of other packages, which read raw tables or write stores of their own (docs/extending.md); each is
imported when first used.

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
    "stoker.store.formats.base": "Chunk DataSource InferredTypeError RowLocation Task WrappedSource inside is_list row_chunk",
    "stoker.store.formats.csv": "Csv",
    "stoker.store.formats.discover": "TableSource find_sources",
    "stoker.store.formats.json_text": "RowTexts",
    "stoker.store.formats.jsonl": "JsonRows",
    "stoker.store.inspect": "StoreSummary VerifyResult",
    "stoker.store.manifest": "NonFinite",
    "stoker.store.pack.options": "DEFAULT_MEMORY Missing PackOptions parse_names parse_threads",
    "stoker.store.pack.packer": "Packer Progress quiet",
    "stoker.store.pack.column_types": "plain_type",
    "stoker.store.pack.plan": "PackPlan make_plan read_table",
    "stoker.store.pack.series_columns": "encode_table",
    "stoker.store.pack.settled_types": "settled_schema",
    "stoker.store.pack.sorted_runs": "read_ahead",
    "stoker.store.pack.values": "one_array",
    "stoker.store.object_storage": "Traffic",
    "stoker.store.remote": "RemoteStore upload",
    "stoker.store.shards": "MISSING_TIME Column NonFiniteCount Texts",
    "stoker.store.store": "Series Store store_from_arrays",
    "stoker.store.opening": "open_store",
    "stoker.store.writer": "check_target",
}

if TYPE_CHECKING:
    from stoker.store.append import add_column as add_column
    from stoker.store.arrow import decimals_as_floats as decimals_as_floats
    from stoker.store.arrow import from_numpy as from_numpy
    from stoker.store.arrow import from_texts as from_texts
    from stoker.store.arrow import lay_texts as lay_texts
    from stoker.store.arrow import to_numpy as to_numpy
    from stoker.store.formats.base import Chunk as Chunk
    from stoker.store.formats.base import DataSource as DataSource
    from stoker.store.formats.base import InferredTypeError as InferredTypeError
    from stoker.store.formats.base import RowLocation as RowLocation
    from stoker.store.formats.base import Task as Task
    from stoker.store.formats.base import WrappedSource as WrappedSource
    from stoker.store.formats.base import inside as inside
    from stoker.store.formats.base import is_list as is_list
    from stoker.store.formats.base import row_chunk as row_chunk
    from stoker.store.formats.csv import Csv as Csv
    from stoker.store.formats.discover import TableSource as TableSource
    from stoker.store.formats.discover import find_sources as find_sources
    from stoker.store.formats.json_text import RowTexts as RowTexts
    from stoker.store.formats.jsonl import JsonRows as JsonRows
    from stoker.store.inspect import StoreSummary as StoreSummary
    from stoker.store.inspect import VerifyResult as VerifyResult
    from stoker.store.manifest import NonFinite as NonFinite
    from stoker.store.object_storage import Traffic as Traffic
    from stoker.store.opening import open_store as open_store
    from stoker.store.pack.column_types import plain_type as plain_type
    from stoker.store.pack.options import DEFAULT_MEMORY as DEFAULT_MEMORY
    from stoker.store.pack.options import Missing as Missing
    from stoker.store.pack.options import PackOptions as PackOptions
    from stoker.store.pack.options import parse_names as parse_names
    from stoker.store.pack.options import parse_threads as parse_threads
    from stoker.store.pack.packer import Packer as Packer
    from stoker.store.pack.packer import Progress as Progress
    from stoker.store.pack.packer import quiet as quiet
    from stoker.store.pack.plan import PackPlan as PackPlan
    from stoker.store.pack.plan import make_plan as make_plan
    from stoker.store.pack.plan import read_table as read_table
    from stoker.store.pack.series_columns import encode_table as encode_table
    from stoker.store.pack.settled_types import settled_schema as settled_schema
    from stoker.store.pack.sorted_runs import read_ahead as read_ahead
    from stoker.store.pack.values import one_array as one_array
    from stoker.store.remote import RemoteStore as RemoteStore
    from stoker.store.remote import upload as upload
    from stoker.store.shards import MISSING_TIME as MISSING_TIME
    from stoker.store.shards import Column as Column
    from stoker.store.shards import NonFiniteCount as NonFiniteCount
    from stoker.store.shards import Texts as Texts
    from stoker.store.store import Series as Series
    from stoker.store.store import Store as Store
    from stoker.store.store import store_from_arrays as store_from_arrays
    from stoker.store.writer import check_target as check_target
else:
    # Hidden from type checkers: a module with __getattr__ would have every name, misspelt ones too.
    __getattr__, __dir__, __all__ = lazy(
        __name__, {name: f"{module}:{name}" for module, names in _NAMES.items() for name in names.split()}
    )
