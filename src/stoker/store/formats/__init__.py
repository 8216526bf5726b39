"""Readers of raw tables, one module per format. `find_sources` picks the reader, `DataSource` says what each must do.

A new format is a subclass of `base.DataSource` and a line in `discover._source`.
"""

from typing import TYPE_CHECKING

from stoker._lazy import lazy

if TYPE_CHECKING:
    from stoker.store.formats.base import Chunk as Chunk
    from stoker.store.formats.base import DataSource as DataSource
    from stoker.store.formats.base import RowLocation as RowLocation
    from stoker.store.formats.csv import Dialect as Dialect
    from stoker.store.formats.discover import find_sources as find_sources
else:
    # Hidden from type checkers: a module with __getattr__ would have every name, misspelt ones too.
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "Chunk": "stoker.store.formats.base:Chunk",
            "DataSource": "stoker.store.formats.base:DataSource",
            "Dialect": "stoker.store.formats.csv:Dialect",
            "RowLocation": "stoker.store.formats.base:RowLocation",
            "find_sources": "stoker.store.formats.discover:find_sources",
        },
    )
