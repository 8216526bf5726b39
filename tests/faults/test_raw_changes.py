"""Sources that change while they are read: an error that says so, never a store of what was never there together."""

from __future__ import annotations

import gzip
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from tests.faults.shapes import SHAPES, small_limits, whole_content
from tests.harness import Zygote

from stoker import _disk, pack
from stoker.errors import SourceError, StoreNotFoundError
from stoker.store import Packer, open_store
from stoker.store.pack.blocks import Shaper

ROWS = 30_000
MAPPED = ("table.arrow",)
FORMS = ("table.parquet", "table.csv", "table.csv.gz", "table.arrow", "table.jsonl", "table.npy")


def write_table(path: Path) -> None:
    """A file of many chunks."""
    rng = np.random.default_rng(3)
    table = pa.table({"t": np.arange(ROWS), "x": rng.normal(size=ROWS)})
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=ROWS // 8)
    elif path.suffix == ".arrow":
        pa.feather.write_feather(table, path, compression="uncompressed", chunksize=ROWS // 8)
    elif path.suffix == ".npy":
        np.save(path, rng.normal(size=(ROWS, 2)))
    elif path.suffix == ".jsonl":
        path.write_text("".join(f'{{"t": {t}, "x": {x}}}\n' for t, x in zip(*table.to_pydict().values(), strict=True)))
    else:
        text = "t,x\n" + "".join(f"{t},{x}\n" for t, x in zip(*table.to_pydict().values(), strict=True))
        path.write_bytes(gzip.compress(text.encode(), 1, mtime=0) if path.suffix == ".gz" else text.encode())


def unlink(path: Path) -> None:
    path.unlink()


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"1,2\n")


def overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size - 200)
        file.write(b"7" * 100)


def replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes()[:-1])
    other.replace(path)


CHANGES: dict[str, Callable[[Path], None]] = {
    change.__name__: change for change in (unlink, truncate, empty, grow, overwrite, replace)
}


def pack_while_it_changes(path: str, change: str, moment: int) -> dict[str, Any]:
    """Change the source before its block `moment`, or before the reading begins if that is -1."""
    blocks = [0]
    shape_block, start = Shaper.block, Packer.__init__

    def block(self: Shaper, *arguments: Any) -> Any:
        if blocks[0] == moment:
            CHANGES[change](Path(path))
        blocks[0] += 1
        return shape_block(self, *arguments)

    def begin(self: Packer, *arguments: Any, **named: Any) -> None:
        start(self, *arguments, **named)
        if moment == -1:
            CHANGES[change](Path(path))

    with (
        small_limits(SHAPES["straight"]),
        mock.patch.object(Shaper, "block", block),
        mock.patch.object(Packer, "__init__", begin),
    ):
        try:
            pack(path, Path(path).with_name("store"), replace=True)
        except SourceError as error:
            return {"error": type(error).__name__, "message": str(error), "blocks": blocks[0]}
    return {"error": None, "blocks": blocks[0]}


@pytest.mark.promise("P6")
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("form", [pytest.param(form, marks=pytest.mark.slow if "json" in form else ()) for form in FORMS])
def test_a_source_that_changes_while_it_is_read_is_reported(pack_zygote: Zygote, quick_path: Path, form: str, change: str) -> None:
    for moment in (-1, 0, 4):
        folder = quick_path / str(moment)
        folder.mkdir()
        write_table(folder / form)
        outcome = pack_zygote.run(pack_while_it_changes, path=folder / form, change=change, moment=moment)
        if form in MAPPED and change in ("truncate", "empty") and outcome.signal == signal.SIGBUS:
            # The limit of maps: what is cut away while it is looked at ends the process. No store is there; the next pack works.
            with pytest.raises(StoreNotFoundError):
                open_store(folder / "store")
            write_table(folder / form)
            pack(folder / form, folder / "store")
            whole_content(folder / "store")
            continue
        found = outcome.check()
        assert found["error"] is not None
        assert form in found["message"]
        assert "\n" not in found["message"]
        assert not (folder / "store").exists()


def test_negative_control_without_a_second_look_changed_sources_are_packed(quick_path: Path) -> None:
    missed = 0
    with mock.patch("stoker.store.pack.packer.stat_source", return_value=None):
        for form in ("table.parquet", "table.csv"):
            for change in ("unlink", "grow", "overwrite"):
                write_table(quick_path / form)
                missed += pack_while_it_changes(str(quick_path / form), change, 4)["error"] is None
                _disk.remove_folder(quick_path / "store")
    assert missed > 0
