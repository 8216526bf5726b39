"""`stoker make`: data to try a recipe with, which the recipe can pack."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from tests.cli.calling import Done

import stoker as package

Stoker = Callable[..., Done]


def test_made_events_are_packed_by_the_recipe(stoker: Stoker, tmp_path: Path) -> None:
    folder, store = tmp_path / "icecube", tmp_path / "ice.stoker"
    made = stoker("make", "icecube", folder, "--files", "4", "--events", "5", "--drift", "--quiet")
    assert made == Done(0, f"wrote 20 events in 4 files: {folder}\n", "")
    packed = stoker("pack", folder, store, "--recipe", "icecube", "--batches", "2-3")
    assert packed.code == 0
    assert packed.out.startswith("packed ")
    assert f" pulses into 10 series, 0.0 MB: {store}" in packed.out
    azimuth = package.open(store).column("azimuth")
    assert ((azimuth >= np.pi / 2) & (azimuth < 3 * np.pi / 2)).all()


def test_files_of_the_test_split(stoker: Stoker, tmp_path: Path) -> None:
    stoker("make", "icecube", tmp_path / "icecube", "--files", "1", "--events", "5", "--split", "test", "-q")
    packed = stoker("pack", tmp_path / "icecube", tmp_path / "a", "--recipe=icecube", "--split", "test", "--json")
    assert (packed.code, packed.err) == (0, "")
    assert '"num_series": 5' in packed.out
