"""`RayDatasetSource`: a `ray.data.Dataset` as a source. Its blocks are Arrow tables, fetched one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from stoker.errors import SourceEmptyError
from stoker.store.formats.base import DataSource, RowLocation, Task, batch_chunks


class RayDatasetSource(DataSource):
    """The rows of a data set in their order. A position is a number of rows.

    The data set is computed once, into the object store of the cluster, as a pack may read its rows twice.
    """

    def __init__(self, given: Any) -> None:
        import ray

        self._ray = ray
        self.name, self.path = "<Dataset>", None
        options = given.context.execution_options
        before, options.preserve_order = options.preserve_order, True  # rows of one series keep the order of the data set
        try:
            whole = given.materialize()
        finally:
            options.preserve_order = before
        self._blocks = whole.to_arrow_refs()
        self.num_bytes = int(whole.size_bytes())
        self.num_rows = self.num_positions = int(whole.count())
        if not self._blocks or not self.num_rows:
            raise SourceEmptyError("the ray.data.Dataset has no rows, so there is nothing to pack.")

    def schema(self) -> pa.Schema:
        """Of the first block; all blocks have one."""
        found: pa.Schema = self._table(0).schema
        return found

    def _table(self, number: int) -> pa.Table:
        return self._ray.get(self._blocks[number])

    def read(self, schema: pa.Schema | None, *, start: RowLocation, chunk_bytes: int) -> Iterator[Task]:
        """Slices of the blocks; see `DataSource.read`."""
        batches = (batch for number in range(len(self._blocks)) for batch in self._table(number).to_batches())
        return batch_chunks(batches, schema, start=start, chunk_bytes=chunk_bytes)
