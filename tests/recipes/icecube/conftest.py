"""Made events, packed once for all tests of the recipe."""

from __future__ import annotations

from pathlib import Path

import pytest

import stoker
from stoker_recipes.icecube import make_events, pack_events


@pytest.fixture(scope="session")
def ice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 56 events in two batches: small enough to train on."""
    folder = tmp_path_factory.mktemp("ice")
    pack_events(make_events(folder / "icecube", files=2, events=28), folder / "ice.stoker")
    return folder / "ice.stoker"


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> stoker.Store:
    """A store of 201 events in three batches."""
    folder = tmp_path_factory.mktemp("icecube")
    return pack_events(make_events(folder / "icecube", files=3, events=67), folder / "ice.stoker")
