"""A pack of IceCube events that is killed at any operation of the disk: a store there always has its geometry, and a pack again works."""

from __future__ import annotations

import errno
import signal
from pathlib import Path

import pytest
from tests.harness import FaultyFiles, Zygote

import stoker
from stoker.errors import DiskError, StoreExistsError, StoreNotFoundError
from stoker_recipes.icecube import make_events, pack_events
from stoker_recipes.icecube.data import geometry_of


@pytest.fixture(scope="module")
def packers(torch_zygote: Zygote) -> Zygote:
    """A process that has loaded the kernels of a pack: each child would take half a second for them."""
    from tests.faults.icecube_warm import load_kernels

    torch_zygote.run(load_kernels).check()
    return torch_zygote


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_events(tmp_path_factory.mktemp("icecube") / "files", files=2, events=5)


def pack_in_child(source: str, target: str, kill_at: int | None = None) -> tuple[list[str], str | None]:
    """The operations of a pack, and the digest of its store; a store that is there already stays."""
    with FaultyFiles(kill_at=kill_at, record=True) as disk:
        try:
            digest = pack_events(source, target).digest
        except StoreExistsError:
            digest = stoker.open(target).digest
    return [str(one) for one in disk.log], digest


def kill_and_pack(packers: Zygote, files: Path, folder: Path, kill_at: int, expected: str) -> bool:
    """Kill a pack, check what it left, and pack again; returns whether the kill left a store."""
    target = folder / f"killed-{kill_at}"
    assert packers.run(pack_in_child, source=str(files), target=str(target), kill_at=kill_at).signal == signal.SIGKILL
    try:
        left = stoker.open(target)
        assert geometry_of(left).read_bytes() == (files / "sensor_geometry.csv").read_bytes()
    except StoreNotFoundError:
        left = None
    assert packers.run(pack_in_child, source=str(files), target=str(target)).check()[1] == expected
    assert geometry_of(stoker.open(target)).read_bytes() == (files / "sensor_geometry.csv").read_bytes()
    return left is not None


@pytest.mark.promise("P29")
@pytest.mark.slow
def test_a_store_is_never_without_its_geometry(packers: Zygote, files: Path, tmp_path: Path) -> None:
    log, digest = packers.run(pack_in_child, source=str(files), target=str(tmp_path / "whole")).check()
    geometry = next(i for i, one in enumerate(log) if one.startswith("create sensor_geometry.csv"))
    manifest = next(i for i, one in enumerate(log) if one.startswith("replace") and "manifest" in one)
    assert geometry < manifest
    left = [kill_and_pack(packers, files, tmp_path, at, digest) for at in (geometry + 1, manifest - 1, manifest, manifest + 1)]
    assert left == [False, False, False, True]


def test_an_error_leaves_the_geometry_of_the_old_store(files: Path, tmp_path: Path) -> None:
    with FaultyFiles(record=True) as disk:
        pack_events(files, tmp_path / "a", batches="1")
    geometry = tmp_path / "a" / "sensor_geometry.csv"
    geometry.write_text("of the old store")
    at = next(i for i, one in enumerate(disk.log) if one.kind == "create" and one.path.name.startswith("manifest"))
    with FaultyFiles(error_at=(at, errno.EIO)), pytest.raises(DiskError):
        pack_events(files, tmp_path / "a", replace=True, batches="1")
    assert geometry.read_text() == "of the old store"
    with FaultyFiles(error_at=(at, errno.EIO)), pytest.raises(DiskError):
        pack_events(files, tmp_path / "new", batches="1")
    assert not (tmp_path / "new").exists()
