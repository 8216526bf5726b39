"""The cache of blocks: verified bytes, leases that eviction respects, several processes, and crashes."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.harness import Zygote

import stoker
from stoker.errors import OptionError, StorageError
from stoker.store import block_cache
from stoker.store.block_cache import ABSENT, NEVER, PRESENT, RESERVED, UNVERIFIED, BlockCache, BlockTable, CacheFullError
from stoker.store.manifest import HEADER_BYTES, MANIFEST_NAME, Manifest, read_manifest
from stoker.store.shards import hash_block

pytestmark = pytest.mark.scale

BLOCK = 1 << 16
NUM_BLOCKS = 20


class Source:
    """Ranges of local files; counts them, and fails on request."""

    def __init__(self, folder: Path) -> None:
        self.url = str(folder)
        self.fetched: list[tuple[str, int]] = []
        self.fails: Callable[[int], BaseException | None] = lambda start: None

    def get_range(self, name: str, start: int, stop: int, is_right: Callable[[Any], bool]) -> bytes:
        self.fetched.append((name, start))
        error = self.fails(start)
        if error is not None:
            raise error
        with Path(self.url, name).open("rb") as file:
            file.seek(start)
            data = file.read(stop - start)
        assert is_right(data)
        return data


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of one column of 20 small blocks."""
    path = tmp_path_factory.mktemp("blocks") / "a.stoker"
    values = np.random.default_rng(0).integers(0, 2**60, NUM_BLOCKS * BLOCK // 8 - 100)
    stoker.Store.from_arrays(x=[values]).save(path)
    return path


def read_table(folder: Path) -> tuple[Manifest, BlockTable]:
    manifest = read_manifest(folder)
    hashes = []
    for shard in BlockTable(manifest).shards:
        values = (folder / shard.file).read_bytes()[HEADER_BYTES:]
        hashes += [hash_block(values[start : start + BLOCK]) for start in range(0, len(values), BLOCK)]
    return manifest, BlockTable(manifest, block_bytes=BLOCK, hashes=hashes)


def open_cache(folder: Path, root: Path, source: Any = None, *, blocks: int = NUM_BLOCKS) -> BlockCache:
    manifest, table = read_table(folder)
    data = (folder / MANIFEST_NAME).read_bytes()
    return BlockCache(root, manifest, data, table, source or Source(folder), limit=blocks * BLOCK)


def ids(*numbers: int) -> np.ndarray[Any, Any]:
    return np.array(numbers)


def is_same(cache: BlockCache, folder: Path, block: int) -> bool:
    """Whether the bytes of a block in the cache are those of the store."""
    table = cache.table
    name = table.shards[int(table.owners[block])].file
    start, stop = int(table.starts[block]), int(table.starts[block] + table.sizes[block])
    return (cache.folder / name).read_bytes()[start:stop] == (folder / name).read_bytes()[start:stop]


def test_blocks_are_fetched_once_and_only_those_asked_for(folder: Path, tmp_path: Path) -> None:
    source = Source(folder)
    cache = open_cache(folder, tmp_path / "cache", source)
    assert len(cache.table) == NUM_BLOCKS
    for _ in range(2):
        with cache.lease(ids(3, 4, 19)):
            assert all(is_same(cache, folder, block) for block in (3, 4, 19))
    assert len(source.fetched) == 3
    assert not is_same(cache, folder, 5)
    assert cache.num_bytes == 3 * BLOCK - 800
    again = Source(folder)
    with open_cache(folder, tmp_path / "cache", again).lease(ids(3, 4)):
        assert again.fetched == []


def test_the_cache_stays_within_its_limit_on_disk(folder: Path, tmp_path: Path) -> None:
    cache = open_cache(folder, tmp_path / "cache", blocks=4)
    for block in range(NUM_BLOCKS):
        with cache.lease(ids(block)):
            assert is_same(cache, folder, block)
        on_disk = sum(path.stat().st_blocks * 512 for path in cache.folder.glob("*.npy"))
        assert cache.num_bytes <= 4 * BLOCK
        assert on_disk <= 5 * BLOCK  # blocks begin behind a header, so pages are shared


def test_the_block_that_is_used_last_goes_first(folder: Path, tmp_path: Path) -> None:
    cache = open_cache(folder, tmp_path / "cache", blocks=3)
    next_use = np.full(NUM_BLOCKS, NEVER)
    next_use[[0, 1, 2]] = 5, 9, 7
    remove = cache.add_forecast(lambda: next_use)
    with cache.lease(ids(0, 1, 2)):
        pass
    with cache.lease(ids(10)):
        assert cache.files.states[:3].tolist() == [PRESENT, ABSENT, PRESENT]
    remove()
    with cache.lease(ids(0)):
        pass
    with cache.lease(ids(11)):  # without a forecast the one that was used longest ago
        assert cache.files.states[[0, 2]].tolist() == [PRESENT, ABSENT]


def test_a_prefetch_does_not_cost_what_is_used_sooner(folder: Path, tmp_path: Path) -> None:
    cache = open_cache(folder, tmp_path / "cache", blocks=2)
    next_use = np.arange(NUM_BLOCKS)
    cache.add_forecast(lambda: next_use)
    with cache.lease(ids(1, 3)):
        pass
    with pytest.raises(CacheFullError):
        cache.acquire(ids(7), horizon=7)
    cache.acquire(ids(2), horizon=2)
    assert cache.files.states[[1, 2, 3]].tolist() == [PRESENT, PRESENT, ABSENT]
    cache.release(ids(2))


def test_a_leased_block_is_not_evicted(folder: Path, tmp_path: Path) -> None:
    cache = open_cache(folder, tmp_path / "cache", blocks=2)
    with cache.lease(ids(0, 1)):
        with pytest.raises(CacheFullError, match=r"has 131\.1 kB, but blocks .* need 196\.6 kB\. Raise cache_size"):
            cache.acquire(ids(2))
        assert is_same(cache, folder, 0)
    with cache.lease(ids(2)):
        pass


@pytest.mark.promise("P31", control=True)
def test_negative_control_without_a_lease_an_evicted_block_reads_as_zeros(folder: Path, tmp_path: Path) -> None:
    cache = open_cache(folder, tmp_path / "cache", blocks=2)
    with cache.lease(ids(0, 1)):
        pass
    with cache.lease(ids(2, 3)):
        assert not is_same(cache, folder, 0)
        assert not np.fromfile(cache.folder / cache.table.shards[0].file, dtype=np.uint8)[HEADER_BYTES : HEADER_BYTES + BLOCK].any()


def test_a_failed_fetch_leaves_the_block_absent_and_the_next_one_works(folder: Path, tmp_path: Path) -> None:
    source = Source(folder)
    cache = open_cache(folder, tmp_path / "cache", source)
    source.fails = lambda start: StorageError("no") if start > BLOCK else None
    with pytest.raises(StorageError, match="no"):
        cache.acquire(ids(0, 1, 2))
    assert cache.files.states[:3].tolist() == [PRESENT, ABSENT, ABSENT]
    source.fails = lambda start: None
    with cache.lease(ids(0, 1, 2)):
        assert all(is_same(cache, folder, block) for block in range(3))


@pytest.mark.promise("P31")
def test_blocks_of_another_boot_are_hashed_before_use(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = open_cache(folder, tmp_path / "cache")
    with cache.lease(ids(0, 1)):
        pass
    name = cache.table.shards[0].file
    with (cache.folder / name).open("r+b") as file:  # what a power loss has not written
        file.seek(HEADER_BYTES)
        file.write(bytes(BLOCK))
    monkeypatch.setattr(block_cache, "boot_id", lambda: b"another".ljust(36))
    source = Source(folder)
    again = open_cache(folder, tmp_path / "cache", source)
    assert again.files.states[:3].tolist() == [UNVERIFIED, UNVERIFIED, ABSENT]
    with again.lease(ids(0, 1)):
        assert is_same(again, folder, 0)
    assert source.fetched == [(name, HEADER_BYTES)]
    assert open_cache(folder, tmp_path / "cache").files.states[:2].tolist() == [PRESENT, PRESENT]


def test_a_folder_of_the_user_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("text")
    with pytest.raises(OptionError, match="was not made by Stoker"):
        open_cache(folder, tmp_path)


def test_unused_stores_go_before_blocks(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.stoker"
    stoker.Store.from_arrays(x=[np.arange(4 * BLOCK // 8)]).save(other)
    neighbour = open_cache(other, tmp_path / "cache", blocks=10)
    with neighbour.lease(np.arange(4)):
        pass
    cache = open_cache(folder, tmp_path / "cache", blocks=6)
    with cache.lease(np.arange(6)):  # the other store is open, but none of its blocks is leased
        pass
    assert neighbour.num_bytes < 4 * BLOCK
    path = neighbour.folder
    neighbour.files.close()
    neighbour._files = None
    with cache.lease(np.arange(6, 12)):
        assert not path.exists()


@pytest.mark.promise("P31")
def test_threads_see_right_bytes_while_blocks_are_evicted(folder: Path, tmp_path: Path) -> None:
    cache = open_cache(folder, tmp_path / "cache", blocks=8)
    wrong: list[Any] = []

    def work(seed: int) -> None:
        generator = np.random.default_rng(seed)
        try:
            for _ in range(25):
                wanted = np.unique(generator.integers(0, NUM_BLOCKS, 2))
                with cache.lease(wanted):
                    wrong.extend(block for block in wanted.tolist() if not is_same(cache, folder, block))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []
    assert cache.num_bytes <= 8 * BLOCK
    assert not cache._leases.any()
    assert not cache._held.any()


# ---- several processes ----


def lease_and_wait(folder: str, root: str) -> None:
    cache = open_cache(Path(folder), Path(root), blocks=2)
    with cache.lease(ids(0, 1)):
        Path(root, "held").touch()
        signal.pause()


def die_while_fetching(folder: str, root: str) -> None:
    source = Source(Path(folder))
    source.fails = lambda start: os.kill(os.getpid(), signal.SIGKILL)
    open_cache(Path(folder), Path(root), source).acquire(ids(4))


@pytest.mark.promise("P31")
def test_a_block_that_another_process_reads_is_not_evicted(folder: Path, tmp_path: Path, zygote: Zygote) -> None:
    root = tmp_path / "cache"
    cache = open_cache(folder, root, blocks=2)
    case = zygote.start(lease_and_wait, folder=folder, root=root)
    while not (root / "held").exists():
        threading.Event().wait(0.01)
    with pytest.raises(CacheFullError):
        cache.acquire(ids(2), horizon=0)
    case.kill(signal.SIGKILL)
    case.wait()
    with cache.lease(ids(2)):
        assert is_same(cache, folder, 2)


@pytest.mark.promise("P31")
def test_a_process_that_is_killed_while_it_fetches_leaves_the_cache_usable(folder: Path, tmp_path: Path, zygote: Zygote) -> None:
    root = tmp_path / "cache"
    assert zygote.run(die_while_fetching, folder=folder, root=root).signal == signal.SIGKILL
    cache = open_cache(folder, root)
    assert cache.files.states[4] == RESERVED
    with cache.lease(ids(4)):
        assert is_same(cache, folder, 4)
