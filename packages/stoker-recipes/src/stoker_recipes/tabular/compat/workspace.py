"""The workspace of mostlyai-engine: its files.

OriginalData/tgt-data, ctx-data       part.000000-trn.parquet, part.000000-val.parquet, ...    the rows
OriginalData/tgt-meta, ctx-meta       encoding-types.json, keys.json
OriginalData/encoded-data             part.*.parquet: one row per subject, sequences as lists
ModelStore/tgt-stats, ctx-stats       stats.json
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from stoker.errors import OptionError, SourceInvalidError
from stoker.extend import disk

Role = Literal["tgt", "ctx"]


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """Where everything is."""

    folder: Path

    def data(self, role: Role) -> Path:
        """The rows of a table."""
        return self.folder / "OriginalData" / f"{role}-data"

    def meta(self, role: Role, name: str) -> Path:
        """A file about a table: "keys" or "encoding-types"."""
        return self.folder / "OriginalData" / f"{role}-meta" / f"{name}.json"

    def stats(self, role: Role) -> Path:
        """The statistics of a table."""
        return self.folder / "ModelStore" / f"{role}-stats" / "stats.json"

    @property
    def encoded(self) -> Path:
        """The codes of all subjects."""
        return self.folder / "OriginalData" / "encoded-data"

    def read(self, path: Path, step: str) -> dict[str, Any]:
        """Read a JSON file that an earlier step writes; raises an error that names the step."""
        try:
            return dict(json.loads(path.read_bytes()))
        except FileNotFoundError:
            raise OptionError(f"{self.folder} has no {path.relative_to(self.folder)}. Call {step}(...) first.", path=path) from None
        except ValueError as error:
            raise SourceInvalidError(f"{path} is damaged: {error}.") from error

    def parts(self) -> list[Path]:
        """The parts of the target table, sorted by name."""
        paths = sorted(self.data("tgt").glob("part.*.parquet"))
        if not paths:
            raise OptionError(
                f"{self.data('tgt')} has no part.*.parquet. Call mostlyai.engine.split(...) first.", path=self.data("tgt")
            )
        return paths


def write_json(path: Path, data: Any) -> None:
    """Write a JSON file as mostlyai-engine does."""
    disk.make_folder(path.parent)
    disk.write_file(path, json.dumps(data, ensure_ascii=False, indent=4).encode())


def write_parquet(path: Path, table: pa.Table) -> None:
    """Write a Parquet file; a reader finds the old file or the whole new one."""
    from pyarrow import parquet

    sink = pa.BufferOutputStream()
    with parquet.ParquetWriter(sink, table.schema) as writer:
        writer.write(table)
    disk.make_folder(path.parent)
    disk.write_file(path, sink.getvalue())


def read_parquet(path: Path) -> pa.Table:
    """Read a Parquet file."""
    from pyarrow import parquet

    try:
        return parquet.read_table(io.BytesIO(path.read_bytes()))
    except (pa.ArrowInvalid, OSError) as error:
        raise SourceInvalidError(f"{path} cannot be read: {error}.") from error


def empty_folder(folder: Path) -> None:
    """Remove the files of an earlier run."""
    for path in folder.glob("*"):
        if path.is_file():
            disk.remove_file(path)
