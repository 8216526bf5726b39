"""`stoker compact`: one plain store, in place or in another folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.cli.calling import Done

from stoker.store.inspect import inspect

Stoker = Callable[..., Done]


def test_a_store_is_compacted_in_place(stoker: Stoker, packed_prices: Path, day: Path) -> None:
    stoker("append", packed_prices, day, "--quiet")
    assert stoker("compact", packed_prices).out.startswith(f"compacted: {packed_prices} has 3 series, 6 steps")
    assert inspect(packed_prices).num_appends == 0


def test_compact_to_another_folder_keeps_the_store(stoker: Stoker, packed_prices: Path, day: Path, tmp_path: Path) -> None:
    stoker("append", packed_prices, day, "--quiet")
    assert stoker("compact", packed_prices, tmp_path / "plain").code == 0
    assert [inspect(path).num_appends for path in (packed_prices, tmp_path / "plain")] == [1, 0]
    done = stoker("compact", packed_prices, tmp_path / "plain")
    assert done.code == 2
    assert "--replace" in done.err
