"""Grouped splits: whole series, equal groups together, and nobody moves when others come."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.split import twin

import stoker
from stoker import Sequences, Store, Windows
from stoker.split import Split, grouped


def parts_of_series(split: Split, store: Store, view: object) -> dict[int, str]:
    """The subset of each series that has samples."""
    samples = twin.list_samples(store, view)
    found: dict[int, str] = {}
    for name, numbers in twin.numbers_of(split).items():
        for number in numbers:
            assert found.setdefault(samples[number].series, name) == name, "a series is in one subset"
    return found


def named(names: list[str], seed: int = 0) -> Store:
    rng = np.random.default_rng(seed)
    return Store.from_arrays(x=[rng.normal(size=int(rng.integers(1, 9))) for _ in names], name=names)


def test_shares_are_about_as_asked() -> None:
    store = named([f"series {i}" for i in range(4000)])
    split = grouped(store, Sequences(8), by="name")
    assert [len(subset) / 4000 for subset in split] == pytest.approx([0.7, 0.15, 0.15], abs=0.02)
    assert sum(len(subset) for subset in split) == 4000
    assert "of " in split.limits["train"]


def test_series_that_are_added_move_no_others() -> None:
    names = [f"series {i}" for i in range(60)]
    few, many = named(names[::2]), named(names)
    before = parts_of_series(grouped(few, Sequences(8), by="name"), few, Sequences(8))
    after = parts_of_series(grouped(many, Sequences(8), by="name"), many, Sequences(8))
    assert {names[::2][series]: subset for series, subset in before.items()} == {
        names[series]: after[series] for series in range(0, 60, 2)
    }
    other = grouped(many, Sequences(8), by="name", seed=1)
    assert parts_of_series(other, many, Sequences(8)) != after, "the seed decides"


def test_groups_stay_together() -> None:
    rng = np.random.default_rng(0)
    sector = rng.integers(0, 12, 100)
    values = {
        "whole": sector,
        "float": np.where(sector == 3, np.nan, sector.astype(np.float32)),
        "text": [f"s{one}" for one in sector],
    }
    for column in values.values():
        store = Store.from_arrays(x=[rng.normal(size=20) for _ in sector], sector=column)
        split = grouped(store, Windows(8, horizon=2), by="sector", seed=2)
        found = parts_of_series(split, store, Windows(8, horizon=2))
        assert len(found) == 100
        assert all(len({found[series] for series in np.flatnonzero(sector == one)}) == 1 for one in range(12))
        assert split.excluded.purged == split.excluded.embargoed == 0, "windows never cross from one series to the next"


def test_a_packed_store_is_known_by_its_keys(tmp_path: Path) -> None:
    def write(names: list[str]) -> Store:
        rows = "".join(f"{name},{step}\n" for name in names for step in range(4))
        (tmp_path / f"{len(names)}.csv").write_text("name,x\n" + rows)
        return stoker.pack(str(tmp_path / f"{len(names)}.csv"), tmp_path / f"store{len(names)}", series="name")

    few, many = write([f"k{i:02}" for i in range(10, 40)]), write([f"k{i:02}" for i in range(50)])
    before = parts_of_series(grouped(few, Windows(2)), few, Windows(2))
    after = parts_of_series(grouped(many, Windows(2)), many, Windows(2))
    assert list(before.values()) != [after[series] for series in before], "their numbers differ"
    assert all(after[series + 10] == subset for series, subset in before.items())


def test_the_parts_are_the_same_everywhere() -> None:
    """Golden: whoever splits again in another version must get the same test subset."""
    store = Store.from_arrays(x=[[1.0]] * 20, name=[f"series {i}" for i in range(20)])
    assert twin.numbers_of(grouped(store, Sequences(1), by="name", fractions=(0.6, 0.4)))["valid"] == GOLDEN
    store = Store.from_arrays(x=[[1.0]] * 20)
    assert twin.numbers_of(grouped(store, Sequences(1), fractions=(0.6, 0.4)))["valid"] == GOLDEN_NUMBERS


GOLDEN = [0, 9, 11, 12, 16, 18]
GOLDEN_NUMBERS = [0, 1, 4, 6, 9, 11, 16, 18, 19]
