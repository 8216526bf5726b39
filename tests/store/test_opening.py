"""Opening a store that is replaced or damaged while it is opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.harness.tiny import TinyStore, tiny_store

from stoker.errors import StoreDamagedError
from stoker.store import opening
from stoker.store.opening import open_store


@pytest.fixture
def built(tmp_path: Path) -> TinyStore:
    return tiny_store(tmp_path / "store")


def test_open_looks_again_when_the_store_was_replaced_in_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tiny_store(tmp_path / "store", columns=["price"], seed=1)
    replacements = iter([2, 3])
    read = opening.read_manifest

    def replacing(folder: Path) -> Any:
        found = read(folder)
        seed = next(replacements, None)
        if seed is not None:
            for path in folder.iterdir():
                path.unlink()
            tiny_store(folder, columns=["price"], seed=seed)
        return found

    monkeypatch.setattr(opening, "read_manifest", replacing)
    store = open_store(old.path)
    assert store.digest == read(old.path).digest != old.manifest.digest


def test_open_does_not_look_forever_at_a_damaged_store(built: TinyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    next(iter(built.path.glob("*.npy"))).unlink()
    looks: list[Path] = []
    read = opening.read_manifest

    def counting(folder: Path) -> Any:
        looks.append(folder)
        return read(folder)

    monkeypatch.setattr(opening, "read_manifest", counting)
    with pytest.raises(StoreDamagedError, match="is missing"):
        open_store(built.path)
    assert len(looks) == 1
