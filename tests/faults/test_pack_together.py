"""Packs and readers of one store at the same time: one pack at a time, and a reader sees the old store or the new one, whole."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from tests.faults.shapes import make_source, pack_shape, whole_content
from tests.harness import FaultyFiles, Zygote
from tests.harness.faulty import Kind

from stoker import Store
from stoker.errors import StoreDamagedError, StoreLockedError
from stoker.store import open_store, shards
from stoker.store import store as stores
from stoker.store.shards import map_shard

pytestmark = pytest.mark.promise("P1")


class RunQueueDelay(FaultyFiles):
    """A disk that stops before one operation until it is told to go on."""

    def __init__(self, wait_at: int, sign: Path) -> None:
        super().__init__()
        self._wait_at = wait_at
        self._sign = sign

    def _begin(self, kind: Kind) -> int:
        number = super()._begin(kind)
        if number == self._wait_at:
            self._sign.with_suffix(".waits").touch()
            while not self._sign.exists():
                time.sleep(0.001)
        return number


def pack_and_wait(name: str, source: str, store: str, wait_at: int, sign: str) -> None:
    with RunQueueDelay(wait_at, Path(sign)):
        pack_shape(name, source, store)


def pack_without_lock_and_wait(name: str, source: str, store: str, wait_at: int, sign: str) -> None:
    with mock.patch("fcntl.flock"):
        pack_and_wait(name, source, store, wait_at, sign)


def start_and_wait(zygote: Zygote, function: Callable[..., Any], folder: Path, wait_at: int) -> Any:
    """A pack in a child that stands still before an operation until the file `folder / "go"` is there."""
    sign = folder / "go"
    case = zygote.start(function, name="straight", source=folder / "source", store=folder / "store", wait_at=wait_at, sign=sign)
    for _ in range(60_000):
        if sign.with_suffix(".waits").exists():
            return case
        time.sleep(0.001)
    raise TimeoutError("the child never came to its operation")


def test_a_second_pack_is_refused_and_reported_which_process_writes(pack_zygote: Zygote, quick_path: Path) -> None:
    source, store = make_source("straight", quick_path / "source"), quick_path / "store"
    first = start_and_wait(pack_zygote, pack_and_wait, quick_path, 40)
    before = {path.name for path in store.rglob("*")}
    with pytest.raises(StoreLockedError, match=rf"is being written by process {first.pid}\."):
        pack_shape("straight", source, store)
    assert {path.name for path in store.rglob("*")} == before, "the second pack touched what the first is making"
    (quick_path / "go").touch()
    first.wait().check()
    whole_content(store)


def test_negative_control_without_the_lock_a_second_pack_ruins_the_first(pack_zygote: Zygote, quick_path: Path) -> None:
    source, store = make_source("straight", quick_path / "source"), quick_path / "store"
    first = start_and_wait(pack_zygote, pack_without_lock_and_wait, quick_path, 40)
    pack_shape("straight", source, store)
    (quick_path / "go").touch()
    assert first.wait().exit != 0


def two_sources(folder: Path) -> list[Path]:
    return [make_source("straight", folder / "one", seed=1), make_source("straight", folder / "two", seed=2)]


def values_of(store: Store) -> list[bytes]:
    return [np.asarray(store.column(name)).tobytes() for name in store.schema]


def test_a_reader_keeps_the_old_store_to_its_end(quick_path: Path) -> None:
    one, two = two_sources(quick_path)
    reader = pack_shape("straight", one, quick_path / "store")
    before = values_of(reader)
    pack_shape("straight", two, quick_path / "store")
    assert values_of(reader) == before
    assert values_of(open_store(quick_path / "store")) != before


def packing_in_between(store: Path, sources: list[Path], rng: np.random.Generator) -> tuple[Callable[..., Any], list[int]]:
    """A `map_shard` before some of whose calls other packs replace the store; and how many they were."""
    packs, calls = [0], [0]
    moments = set(rng.integers(0, 4, size=int(rng.integers(1, 4))).tolist())

    def map_late(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] - 1 in moments:
            for _ in range(int(rng.integers(1, 3))):
                packs[0] += 1
                pack_shape("straight", sources[int(rng.integers(2))], store)
        return map_shard(*arguments, **options)

    return map_late, packs


def open_in_between(
    store: Path, sources: list[Path], rng: np.random.Generator, open_it: Callable[[Path], Store]
) -> tuple[str, int]:
    """Open while packs replace the store; the digest of what was opened, all its values compared with that."""
    map_late, packs = packing_in_between(store, sources, rng)
    # A pack opens its store as well: only the outer opening is held up.
    with (
        mock.patch.object(shards, "map_shard", map_late),
        mock.patch("stoker.store.pack.packer.map_store"),
        mock.patch("stoker.store.writer.check_staged"),
    ):
        opened = open_it(store)
    return str(opened.digest) + str(hash(tuple(values_of(opened)))), packs[0]


def test_opening_while_packs_replace_the_store_gives_one_of_them_whole(quick_path: Path, rng: np.random.Generator) -> None:
    store, sources = quick_path / "store", two_sources(quick_path)
    whole = set()
    for source in sources:
        opened = pack_shape("straight", source, store)
        whole.add(str(opened.digest) + str(hash(tuple(values_of(opened)))))
    seen: Counter[str] = Counter()
    num_packs = 0
    for _ in range(30):
        found, packs = open_in_between(store, sources, rng, open_store)
        seen[found] += 1
        num_packs += packs
    assert set(seen) == whole
    assert num_packs > 30


def test_negative_control_opening_without_a_second_look_fails(quick_path: Path, rng: np.random.Generator) -> None:
    store, sources = quick_path / "store", two_sources(quick_path)
    pack_shape("straight", sources[0], store)
    failed = 0
    for _ in range(25):
        try:
            open_in_between(store, sources, rng, lambda path: stores.map_store(path, stores.read_manifest(path)))
        except StoreDamagedError:
            failed += 1
    assert failed > 0
