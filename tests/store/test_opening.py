"""Opening a store that is damaged while it is opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.harness.tiny import TinyStore, tiny_store

from stoker.errors import StoreDamagedError
from stoker.store import open_store, opening


@pytest.fixture
def built(tmp_path: Path) -> TinyStore:
    return tiny_store(tmp_path / "store")


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
