"""Raw files become immutable, memory-mapped columns: sources -> shaping -> column files -> store.

Most users need only `stoker.pack`, `stoker.open` and `stoker.Store`. The names below are for code that reads tables or writes
stores itself, such as `stoker.encode`. Each is imported when first used.
"""

from typing import TYPE_CHECKING

from stoker._lazy import lazy

_LAZY = {
    # Opening stores, and stores in memory.
    "Column": "stoker.store.shards:Column",
    "Store": "stoker.store.store:Store",
    "Texts": "stoker.store.shards:Texts",
    "open_store": "stoker.store.store:open_store",
    "store_from_arrays": "stoker.store.memory:store_from_arrays",
    # Writing stores.
    "NonFinite": "stoker.store.manifest:NonFinite",
    "NonFiniteCount": "stoker.store.shards:Tally",
    "add_column": "stoker.store.add_column:add_column",
    "check_target": "stoker.store.writer:check_target",
    # Reading tables from files or from memory.
    "Dialect": "stoker.store.formats.csv:Dialect",
    "PackOptions": "stoker.store.pack.options:Options",
    "RowLocation": "stoker.store.formats.base:Place",
    "PackPlan": "stoker.store.pack.plan:Plan",
    "DataSource": "stoker.store.formats.base:Source",
    "TableSource": "stoker.store.formats.tables:TableSource",
    "InferredTypeError": "stoker.store.formats.base:Unfit",
    "find_sources": "stoker.store.formats.discover:find_sources",
    "make_plan": "stoker.store.pack.plan:make_plan",
    "read_ahead": "stoker.store.pack.packer:read_ahead",
    "settle_plan": "stoker.store.pack.plan:settle_plan",
    "unify_types": "stoker.store.pack.plan:unify_types",
    # Options of a pack.
    "DEFAULT_MEMORY": "stoker.store.pack.options:DEFAULT_MEMORY",
    "Missing": "stoker.store.pack.options:Missing",
    "Progress": "stoker.store.pack.packer:Progress",
    "parse_names": "stoker.store.pack.options:parse_names",
    "parse_threads": "stoker.store.pack.options:parse_threads",
    "quiet": "stoker.store.pack.packer:quiet",
    # Arrow and NumPy values.
    "MISSING_TIME": "stoker.store.shards:MISSING_TIME",
    "decimals_as_floats": "stoker.store.interop:decimals_as_floats",
    "from_numpy": "stoker.store.interop:from_numpy",
    "from_texts": "stoker.store.interop:from_texts",
    "is_list": "stoker.store.pack.plan:is_list",
    "one_array": "stoker.store.pack.values:one_array",
    "plain_type": "stoker.store.pack.plan:plain_type",
    "to_numpy": "stoker.store.interop:to_numpy",
    # Files of Time-MoE.
    "is_time_moe": "stoker.store.formats.time_moe:is_time_moe",
    "map_time_moe": "stoker.store.memory:map_time_moe",
}

if TYPE_CHECKING:
    __all__ = [
        "DataSource",
        "InferredTypeError",
        "NonFiniteCount",
        "PackOptions",
        "PackPlan",
        "RowLocation",
    ]  # those with another name than in their module
    from stoker.store.add_column import add_column as add_column
    from stoker.store.formats.base import Place as RowLocation
    from stoker.store.formats.base import Source as DataSource
    from stoker.store.formats.base import Unfit as InferredTypeError
    from stoker.store.formats.csv import Dialect as Dialect
    from stoker.store.formats.discover import find_sources as find_sources
    from stoker.store.formats.tables import TableSource as TableSource
    from stoker.store.formats.time_moe import is_time_moe as is_time_moe
    from stoker.store.interop import decimals_as_floats as decimals_as_floats
    from stoker.store.interop import from_numpy as from_numpy
    from stoker.store.interop import from_texts as from_texts
    from stoker.store.interop import to_numpy as to_numpy
    from stoker.store.manifest import NonFinite as NonFinite
    from stoker.store.memory import map_time_moe as map_time_moe
    from stoker.store.memory import store_from_arrays as store_from_arrays
    from stoker.store.pack.options import DEFAULT_MEMORY as DEFAULT_MEMORY
    from stoker.store.pack.options import Missing as Missing
    from stoker.store.pack.options import Options as PackOptions
    from stoker.store.pack.options import parse_names as parse_names
    from stoker.store.pack.options import parse_threads as parse_threads
    from stoker.store.pack.packer import Progress as Progress
    from stoker.store.pack.packer import quiet as quiet
    from stoker.store.pack.packer import read_ahead as read_ahead
    from stoker.store.pack.plan import Plan as PackPlan
    from stoker.store.pack.plan import is_list as is_list
    from stoker.store.pack.plan import make_plan as make_plan
    from stoker.store.pack.plan import plain_type as plain_type
    from stoker.store.pack.plan import settle_plan as settle_plan
    from stoker.store.pack.plan import unify_types as unify_types
    from stoker.store.pack.values import one_array as one_array
    from stoker.store.shards import MISSING_TIME as MISSING_TIME
    from stoker.store.shards import Column as Column
    from stoker.store.shards import Tally as NonFiniteCount
    from stoker.store.shards import Texts as Texts
    from stoker.store.store import Store as Store
    from stoker.store.store import open_store as open_store
    from stoker.store.writer import check_target as check_target
else:
    # Hidden from type checkers: a module with __getattr__ would have every name, misspelt ones too.
    __getattr__, __dir__, __all__ = lazy(__name__, _LAZY)
