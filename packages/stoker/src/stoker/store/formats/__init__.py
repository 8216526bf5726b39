"""Readers of raw tables, one module per format. `discover.find_sources` picks the reader of a path.

A new format is a subclass of `base.DataSource` and a line in `discover._FORMATS`. The public names (`find_sources`, `DataSource`,
`Csv`, `Chunk`, `RowLocation`, `TableSource`) are those that `stoker.store` exports.
"""
