"""`SqlSource`: the rows of a DuckDB statement over other sources, as a stream. DuckDB is the extra `sql`.

The statement sees the given sources as the view `source`. They are read by the readers of this project, so their types and errors are
those of any pack, and the packer sorts and writes the result, so its memory and its bytes are those of any pack too.

One thread runs the statement: with two, equal inputs gave two orders of rows out of a join. The statement may read files in the current
folder and in those of the sources, and nothing else: it may be that of a store or a run which somebody else has made.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from stoker import _disk
from stoker._text import how_to_install
from stoker.errors import OptionError
from stoker.store.formats.base import DataSource, InferredTypeError, RowLocation, Task, batch_chunks, batch_rows
from stoker.store.pack.options import PackOptions
from stoker.store.pack.schemas import unify_schemas
from stoker.store.pack.settled_types import settled_schema
from stoker.store.pack.sorted_runs import read_ahead

_VIEW = "source"
_NO_WAIT = 3  # chunks that are decoded while the statement works on others


class SqlSource(DataSource):
    """The result of a statement. A position is a number of rows; reading from any row runs the whole statement again."""

    label = "the result of sql="

    def __init__(self, statement: str, sources: Sequence[DataSource], options: PackOptions) -> None:
        self.name, self.path = sources[0].name if len(sources) == 1 else "<sql>", None
        self.num_bytes = sum(source.num_bytes for source in sources)
        self.typed = all(source.typed for source in sources)
        self._statement = statement
        self._sources = sources
        names = set(sources[0].schema().names)  # dtype= names columns of the result, and of text that the statement reads
        texts = {name: kind for name, kind in options.dtypes.items() if name in names}
        self._options = PackOptions(dtypes=texts, memory_bytes=options.memory_bytes, threads=options.threads)
        self._input = unify_schemas(sources, [source.schema() for source in sources], self._options)
        self._num_rows = [0] * len(sources)

    def origins(self, num_rows: int) -> list[tuple[DataSource, int]]:
        """The sources of the statement; their rows are known once all were read."""
        return list(zip(self._sources, self._num_rows, strict=True))

    def schema(self) -> pa.Schema:
        """Names and types of the result."""
        return self._result

    @cached_property
    def _result(self) -> pa.Schema:
        """Names and types of the result, which those of the sources determine."""
        with self._connected(self._input.empty_table()) as relation:
            return relation.limit(0).to_arrow_reader(1).schema

    def read(self, schema: pa.Schema | None, *, start: RowLocation, chunk_bytes: int) -> Iterator[Task]:
        """Run the statement; see `DataSource.read`."""
        view = _View(self._input, self._tables)
        self._num_rows = [0] * len(self._sources)
        try:
            with self._connected(view) as relation:
                batches = relation.to_arrow_reader(batch_rows(self._result, chunk_bytes))
                yield from batch_chunks(batches, schema, start=start, chunk_bytes=chunk_bytes)
        except InferredTypeError:
            self._settle()
            raise

    def _tables(self) -> Iterator[pa.Table]:
        """The tables of all sources, decoded on other threads than the one that runs the statement."""
        options, rows = self._options, [0] * len(self._sources)
        with ThreadPoolExecutor(options.num_readers, thread_name_prefix="stoker-reader") as pool:
            for number, source in enumerate(self._sources):
                tasks = source.read(self._input, start=RowLocation(), chunk_bytes=options.chunk_bytes)
                with closing(read_ahead(tasks, pool, depth=_NO_WAIT, max_bytes=options.limits.line_bytes)) as chunks:
                    for chunk in chunks:
                        rows[number] += chunk.table.num_rows
                        yield chunk.table.cast(self._input)
        self._num_rows = rows  # not if the statement stops early, as with LIMIT: how far it read depends on the size of chunks

    def _settle(self) -> None:
        """Read all rows to find the types that hold all values of text, and forget the types of the result."""
        self._input = settled_schema(self._sources, self._input, self._options, gaps=False)
        del self._result

    @contextlib.contextmanager
    def _connected(self, view: Any) -> Iterator[Any]:
        """The statement as a relation over `view`; errors of DuckDB become one line that names the statement."""
        duckdb = import_duckdb()
        with _disk.temporary_folder() as spilled:
            connection = duckdb.connect(":memory:", config=_config(self._options, spilled))
            try:
                folders = {
                    Path.cwd(),
                    *(source.path.absolute().parent for source in self._sources if isinstance(source.path, Path)),
                }
                quoted = ", ".join("'" + str(folder).replace("'", "''") + "'" for folder in sorted(folders))
                connection.execute(f"SET TimeZone='UTC'; SET allowed_directories=[{quoted}]")
                # Without a terminal it believes in one under `python -c`, and prints a bar between the lines of the command.
                connection.execute("SET enable_progress_bar=false")
                connection.execute("SET enable_external_access=false; SET lock_configuration=true")
                self._check(connection, duckdb)
                connection.register(_VIEW, view)
                yield connection.sql(self._statement)
            except duckdb.Error as error:
                if isinstance(view, _View) and view.error is not None:
                    raise view.error from None
                raise self._refused(error) from None
            finally:
                connection.close()

    def _check(self, connection: Any, duckdb: Any) -> None:
        """Refuse all but one statement that reads, and files without an end."""
        for name in re.findall(r"'([^'\0]+)'", self._statement):
            if Path(name).exists() and not (Path(name).is_file() or Path(name).is_dir()):
                raise OptionError(
                    f"sql= reads {name!r}, which is not a plain file. Copy its content to a file first.", parameter="sql"
                )
        kinds = [statement.type for statement in connection.extract_statements(self._statement)]
        if kinds != [duckdb.StatementType.SELECT]:
            raise OptionError(
                f"sql={_shown(self._statement)!r} is invalid; expected one SELECT statement over the table {_VIEW!r}.",
                parameter="sql",
            )

    def _refused(self, error: Exception) -> OptionError:
        reason = " ".join(str(error).partition("\nLINE ")[0].split()).rstrip(".")
        hint = f"The table {_VIEW!r} has the columns {', '.join(self._input.names[:20])}."
        if reason.startswith("Permission Error"):
            hint = "A statement may read files in the current folder and in those of the sources."
        return OptionError(f"sql={_shown(self._statement)!r} cannot be run: {reason}. {hint}", parameter="sql")


class _View:
    """What DuckDB scans: a new stream of the sources for each scan, and the error that ended one."""

    def __init__(self, schema: pa.Schema, tables: Any) -> None:
        self._schema, self._tables = schema, tables
        self.error: Exception | None = None

    def __arrow_c_schema__(self) -> object:
        return self._schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return pa.RecordBatchReader.from_batches(self._schema, self._batches()).__arrow_c_stream__()

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            for table in self._tables():
                yield from table.to_batches()
        except Exception as error:
            self.error = error
            raise


def import_duckdb() -> Any:
    """The module `duckdb`, version 2 or newer: older ones scan a stream only once."""
    try:
        import duckdb
    except ImportError:
        raise OptionError(f"sql= needs DuckDB, which is not installed. {how_to_install('sql')}", parameter="sql") from None
    if int(duckdb.__version__.partition(".")[0]) < 2:
        raise OptionError(
            f"sql= needs DuckDB 2 or newer, but {duckdb.__version__} is installed. {how_to_install('sql')}", parameter="sql"
        )
    return duckdb


def _config(options: PackOptions, spilled: Path) -> dict[str, Any]:
    return {
        "threads": 1,
        "memory_limit": f"{options.memory_bytes // 2}B",
        "temp_directory": str(spilled),
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "python_enable_replacements": False,  # a name in a statement is not a variable of some Python function
        # A join holds its right table and streams its left one, as the statement says. The optimizer knows no sizes of streams: it held
        # the rows of the source, and gave them in reverse order.
        "disabled_optimizers": "join_order,build_side_probe_side",
    }


def _shown(statement: str) -> str:
    text = " ".join(statement.split())
    return text if len(text) <= 200 else f"{text[:200]}…"
