"""Features in a store: beside the bars they belong to, whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.harness import FaultyFiles
from tests.recipes.tfa.indicators.markets import market
from tests.recipes.tfa.indicators.specs import all_operators

from stoker import _disk
from stoker.errors import BadValueError, DiskError, OptionError, StoreDamagedError
from stoker.store.inspect import verify
from stoker.store.opening import open_store
from stoker.store.pack.api import pack
from stoker.store.store import Store
from stoker_recipes.tfa.indicators import engine
from stoker_recipes.tfa.indicators.engine import features, write_features

SPEC = all_operators(window=5)
LENGTHS = [40, 3, 300, 0, 57]


def bars_in_memory(lengths: list[int] = LENGTHS) -> Store:
    parts = [market(length, seed) for seed, length in enumerate(lengths)]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return Store.from_arrays(lengths=lengths, label=np.arange(len(lengths)), **columns)


@pytest.fixture
def bars(tmp_path: Path) -> Store:
    return pack(bars_in_memory(), tmp_path / "bars")


@pytest.mark.parametrize("compat", [None, "sentio"])
def test_the_store_holds_the_bars_and_their_features(bars: Store, tmp_path: Path, compat: str | None) -> None:
    store = write_features(bars, SPEC, tmp_path / "out", compat=compat)
    frame = features(bars, SPEC, compat=compat)
    assert store.column("features").tobytes() == frame.values.tobytes()
    assert store.schema["features"].label == "float32[32]"
    assert list(store.schema) == [*bars.schema, "features"]
    for name in bars.schema:
        assert store.column(name).tobytes() == bars.column(name).tobytes()
    assert store.lengths.tolist() == LENGTHS
    assert store.schema["features"].nonfinite.nan == int(np.isnan(frame.values).sum())
    verify(tmp_path / "out")
    note = store.manifest.notes[-1] if store.manifest else ""
    assert note.startswith("features: IDENT, LOGRET, MOMENTUM, ")
    arithmetic = ", compat sentio" if compat else ""
    assert note.endswith(f"(spec {frame.spec.content_hash}{arithmetic}, emit_from {frame.emit_from})")


def test_long_series_go_to_the_disk_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bars = pack(bars_in_memory([5, 500, 3, 4, 90]), tmp_path / "bars")
    whole = write_features(bars, SPEC, tmp_path / "whole")
    monkeypatch.setattr(engine, "SHARE", 8)
    monkeypatch.setattr(engine, "_LONG", 50)
    monkeypatch.setattr(engine, "PIECE", 32)
    for threads in (1, 3):
        store = write_features(bars, SPEC, tmp_path / f"pieces {threads}", threads=threads)
        assert store.digest == whole.digest


def test_what_would_be_lost_is_refused(bars: Store, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="bars is both the source and the store"):
        write_features(bars, SPEC, tmp_path / "bars")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(OptionError, match=r"is not a store and not empty \(it holds 'thesis.txt'\)"):
        write_features(bars, SPEC, tmp_path / "mine")
    with pytest.raises(OptionError, match=r"bars has a column 'close' already\. Choose another name"):
        write_features(bars, SPEC, tmp_path / "out", name="close")
    with pytest.raises(OptionError, match="<memory> is in memory: pack it first"):
        write_features(bars_in_memory(), SPEC, tmp_path / "out")
    with pytest.raises(OptionError, match=r"at \$\.features\[0\]\.op"):
        write_features(bars, {"features": [{"op": "?"}]}, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bars", "mine"]


def test_damaged_bars_are_not_carried_on(bars: Store, tmp_path: Path) -> None:
    shard = next(column.values for column in bars.manifest.columns if column.name == "low")  # type: ignore[union-attr]
    path = tmp_path / "bars" / shard.file  # type: ignore[union-attr]
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(500)
        file.write(b"\x07")
    with pytest.raises(StoreDamagedError, match="has changed since it was written"):
        write_features(open_store(tmp_path / "bars"), SPEC, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def content(folder: Path) -> Any:
    if not folder.exists():
        return None
    verify(folder)
    return open_store(folder).digest


@pytest.fixture
def quick_path() -> Iterator[Path]:
    """In memory where there is such a folder: syncs are counted here, not waited for."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="stoker-features-", dir=memory if os.access(memory, os.W_OK) else None) as name:
        yield Path(name)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_an_error_at_any_operation_leaves_the_old_store_or_the_new_one(quick_path: Path, code: int) -> None:
    spec, out = {"features": [{"name": "m", "op": "MOMENTUM", "window": 1}]}, quick_path / "deep" / "out"
    bars = pack({"close": np.arange(5.0)}, quick_path / "bars")
    with FaultyFiles() as disk:
        new = write_features(bars, spec, out).digest
    _disk.remove_folder(out.parent)
    for k in range(disk.operations):
        with FaultyFiles(error_at=(k, code)), pytest.raises(DiskError):
            write_features(bars, spec, out)
        assert content(out) in (None, new)
        assert content(out) is not None or not out.parent.exists()
        _disk.remove_folder(out.parent)
    old = pack({"x": [1.0]}, out).digest
    for k in range(disk.operations):
        with FaultyFiles(error_at=(k, code)), contextlib.suppress(DiskError):
            write_features(bars, spec, out, replace=True)
        assert content(out) in (old, new)
        pack({"x": [1.0]}, out, replace=True)


def test_bars_that_cannot_be_read_leave_nothing(tmp_path: Path) -> None:
    bars = pack({"close": ["a", "b"], "x": [1.0, 2.0]}, tmp_path / "bars")
    with pytest.raises(BadValueError, match=r"column 'close' of the bars holds strings: 'a' in bar 1; expected numbers\."):
        write_features(bars, {"features": [{"name": "c", "op": "IDENT"}]}, tmp_path / "out")
    assert not (tmp_path / "out").exists()
