"""A cache of blocks: the shards of a remote store as sparse local files, filled block by block, shared by processes.

    BlockTable    the blocks of all shards of a manifest, numbered: where each lies, and its hash
    BlockFiles    files, states and locks of one store in a cache folder
    BlockCache    leases: blocks that are there, verified, and stay while they are used

    cache/<digest>-<block size>/remote.json    the manifest (not manifest.json, so that files with holes are not opened as a store)
    cache/<digest>-<block size>/<shard>.npy    a shard of full size; what was not fetched is a hole
    cache/<digest>-<block size>/states         a byte per block: absent, reserved, present, unverified

A block has a hash, in the manifest or in the list that an upload adds. It is written only after its bytes have the right hash, and
its state is set after that, so a killed process leaves a block absent or reserved, which counts as absent. After a power loss a state
may be on disk before its bytes: states of another boot are unverified, and such a block is hashed again before it is used.

Locks are those of the kernel on bytes of `states`, one byte per block, and end with their process. Who reads a block has a shared
lock; who fetches or evicts it an exclusive one, which is never waited for while another is held.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from stoker import _cache_files, _disk
from stoker._clock import now_ns
from stoker._text import readable_bytes
from stoker._types import Array
from stoker.errors import DiskError, OptionError, StorageError, StoreDamagedError
from stoker.store.manifest import BLOCK_BYTES, HEADER_BYTES, Manifest, Shard, load, shards
from stoker.store.object_storage import Bucket
from stoker.store.shards import hash_block, header

ABSENT, RESERVED, PRESENT, UNVERIFIED = range(4)

MARK = ".stoker-cache"
THREADS = 8
"""Requests at a time."""
WAIT_S = 300.0
"""How long a block that another process fetches, or space that others use, is waited for."""
NEVER = np.iinfo(np.int64).max

_MANIFEST, _STATES, _SIGN = "remote.json", "states", b"stoker-blocks-1\n"
_STATES_HEADER = 64  # the sign, then the boot
_POLL_S = 0.005
_EVICTED_TOGETHER = 64


def boot_id() -> bytes:
    """Changes with each start of the machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()[:36].ljust(36)
    except OSError:
        return b"unknown".ljust(36)


class CacheFullError(StorageError):
    """Blocks that are in use leave no room for others."""


class BlockTable:
    """The blocks of all shards of a manifest; block b is bytes `starts[b]` to `starts[b] + sizes[b]` of its file."""

    def __init__(self, manifest: Manifest, *, block_bytes: int = BLOCK_BYTES, hashes: Sequence[str] = ()) -> None:
        by_file: dict[str, Shard] = {shard.file: shard for shard in shards(manifest)}
        self.shards = list(by_file.values())
        self.block_bytes = block_bytes
        self.hashes = hashes or [block for shard in self.shards for block in shard.blocks]
        num_bytes = np.array([shard.values_bytes for shard in self.shards], dtype=np.int64)
        counts = -(-num_bytes // block_bytes)
        firsts = np.cumsum(counts) - counts
        self.first = dict(zip(by_file, firsts.tolist(), strict=True))
        """The first block of each file."""
        self.owners = np.repeat(np.arange(len(counts)), counts)
        begin = (np.arange(counts.sum()) - firsts[self.owners]) * block_bytes
        self.starts, self.sizes = begin + HEADER_BYTES, np.minimum(block_bytes, num_bytes[self.owners] - begin)

    def __len__(self) -> int:
        return len(self.sizes)

    def ids(self, file: str, starts: Array, stops: Array) -> Array:
        """The blocks of some ranges of bytes of the values of a file, sorted, each once."""
        some = stops > starts
        low, high = starts[some] // self.block_bytes, (stops[some] - 1) // self.block_bytes
        counts = high - low + 1
        ids: Array = np.unique(np.repeat(low - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())) + self.first[file]
        return ids

    def all_ids(self, file: str) -> Array:
        """All blocks of a file."""
        number = list(self.first).index(file)
        return np.arange(*np.searchsorted(self.owners, [number, number + 1]))


def _runs(ids: Array) -> Iterator[tuple[int, int]]:
    """Sorted numbers as ranges (first, count)."""
    if not len(ids):
        return
    cuts = np.flatnonzero(np.diff(ids) != 1) + 1
    for first, last in zip(ids[np.concatenate([[0], cuts])], ids[np.concatenate([cuts - 1, [len(ids) - 1]])], strict=True):
        yield int(first), int(last - first + 1)


def _lock(fd: int, first: int, count: int, kind: int) -> bool:
    # Locks of an open file, not of the process: closing another descriptor of the file must not end them.
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, _STATES_HEADER + first, count, 0))
    except (BlockingIOError, PermissionError):
        return False
    return True


class BlockFiles:
    """The files of one store in a cache: states, locks, and bytes. Each object has locks of its own."""

    def __init__(self, folder: Path, table: BlockTable) -> None:
        self.folder = folder
        self.table = table
        with _disk.naming(folder):
            self._fd = _cache_files.disk.open_again(folder / _STATES)
            self._mapped = mmap.mmap(self._fd, _STATES_HEADER + len(table), prot=mmap.PROT_READ)
        self.states: Array = np.frombuffer(self._mapped, dtype=np.uint8, offset=_STATES_HEADER)
        self._shards: dict[int, int] = {}
        self._lock = threading.Lock()
        # On a byte of the header: whether the store is open at all.
        self.lock(-1, 1, fcntl.F_RDLCK)

    def close(self) -> None:
        """Close all files, which ends the locks."""
        for fd in (self._fd, *self._shards.values()):
            os.close(fd)
        self._shards, self._fd = {}, -1

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.close()

    def lock(self, first: int, count: int, kind: int) -> bool:
        """Lock blocks, or change or end (F_UNLCK) the lock; False where another process or object has one that excludes it."""
        return _lock(self._fd, first, count, kind)

    def set_states(self, ids: Array, state: int) -> None:
        """Set the state of some blocks."""
        for first, count in _runs(ids):
            _cache_files.write_into(self.folder / _STATES, self._fd, bytes([state]) * count, _STATES_HEADER + first)

    def _open(self, block: int) -> tuple[Path, int]:
        owner = int(self.table.owners[block])
        path = self.folder / self.table.shards[owner].file
        with self._lock:
            if owner not in self._shards:
                with _disk.naming(path):
                    self._shards[owner] = _cache_files.disk.open_again(path)
            return path, self._shards[owner]

    def write(self, block: int, data: Any) -> None:
        """Write the bytes of a block, which were verified."""
        path, fd = self._open(block)
        _cache_files.write_into(path, fd, data, int(self.table.starts[block]))

    def is_right(self, block: int) -> bool:
        """Whether the bytes on disk have the hash of the block."""
        _, fd = self._open(block)
        return hash_block(os.pread(fd, int(self.table.sizes[block]), int(self.table.starts[block]))) == self.table.hashes[block]

    def punch(self, block: int) -> None:
        """Evict a block that is locked exclusively."""
        self.set_states(np.array([block]), ABSENT)
        path, fd = self._open(block)
        _cache_files.punch_hole(path, fd, int(self.table.starts[block]), int(self.table.sizes[block]))

    def evict(self, candidates: Array, excess: int) -> int:
        """Evict blocks, in this order, until `excess` bytes are free; leaves out those that are locked. Returns the bytes."""
        freed = 0
        for block in candidates.tolist():
            if freed >= excess:
                break
            if not self.lock(block, 1, fcntl.F_WRLCK):
                continue
            try:
                if self.states[block] != ABSENT:
                    self.punch(block)
                    freed += int(self.table.sizes[block])
            finally:
                self.lock(block, 1, fcntl.F_UNLCK)
        return freed


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock of the cache folder; waits for it."""
    fd = _disk.open_lock(path)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _prepare(root: Path, manifest: Manifest, data: bytes, table: BlockTable) -> Path:
    """The folder of a store in a cache; made, or checked and brought up to date."""
    advice = "Give another folder as cache."
    _disk.claim_folder(root, marker=MARK, sign=b'"stoker": "cache"', advice=advice)
    folder, boot = root / f"{manifest.digest}-{table.block_bytes}", boot_id()
    with _locked(root / ".lock"):
        if (folder / _STATES).exists():
            if (folder / _MANIFEST).read_bytes() != data:
                raise StoreDamagedError(
                    f"{folder} holds another store of the same digest. Remove this folder, or use another cache."
                )
            states = (folder / _STATES).read_bytes()
            if len(states) == _STATES_HEADER + len(table) and states.startswith(_SIGN) and _has_all_files(folder, table):
                if states[len(_SIGN) : len(_SIGN) + len(boot)] != boot:
                    unverified = states[_STATES_HEADER:].replace(bytes([PRESENT]), bytes([UNVERIFIED]))
                    _cache_files.write_cache_file(folder / _STATES, (_SIGN + boot).ljust(_STATES_HEADER) + unverified)
                return folder
            _disk.remove_folder(folder)
        _disk.make_folder(folder)
        for shard in table.shards:
            _cache_files.make_sparse_file(folder / shard.file, header(shard.dtype, shard.shape), shard.num_bytes)
        _cache_files.write_cache_file(folder / _MANIFEST, data)
        _check_holes(folder, table)
        # Last: without it the folder is made again.
        _cache_files.write_cache_file(folder / _STATES, (_SIGN + boot).ljust(_STATES_HEADER) + bytes(len(table)))
    return folder


def _check_holes(folder: Path, table: BlockTable) -> None:
    """Refuse a file system that cannot free a part of a file, before anything is fetched."""
    for shard in table.shards[:1]:
        fd = _cache_files.disk.open_again(folder / shard.file)
        try:
            _cache_files.punch_hole(folder / shard.file, fd, HEADER_BYTES, 1)
        except DiskError as error:
            raise OptionError(
                f"the cache {folder.parent} cannot evict blocks: {error.args[-1]} Use a folder on ext4, xfs or tmpfs.",
                path=folder.parent,
            ) from None
        finally:
            os.close(fd)


def _has_all_files(folder: Path, table: BlockTable) -> bool:
    try:
        return all((folder / shard.file).lstat().st_size == shard.num_bytes for shard in table.shards)
    except OSError:
        return False


def _neighbours(root: Path, folder: Path) -> dict[Path, int]:
    """Other stores in the same cache, with the bytes of their blocks."""
    sizes = {}
    for other in sorted(root.iterdir()):
        if other != folder and other.is_dir() and not other.is_symlink():
            with contextlib.suppress(OSError, ValueError):  # removed meanwhile, or not yet made
                states = np.frombuffer((other / _STATES).read_bytes(), dtype=np.uint8, offset=_STATES_HEADER)
                sizes[other] = int((states != ABSENT).sum()) * _block_bytes(other)
    return sizes


def _block_bytes(folder: Path) -> int:
    return int(folder.name.partition("-")[2])


class BlockCache:
    """The blocks of one store in a cache folder, for the threads of this process.

    Args:
        root: the cache folder; several stores and processes may share it.
        manifest: the manifest of the store, and `data`, its bytes.
        table: its blocks.
        source: where blocks are fetched from.
        limit: bytes that the blocks of all stores in the folder may take.
    """

    def __init__(self, root: Path, manifest: Manifest, data: bytes, table: BlockTable, source: Bucket, *, limit: int) -> None:
        self.root = root
        self.limit = limit
        self.folder = _prepare(root, manifest, data, table)
        self.table = table
        self._source = source
        self._forecasts: list[Callable[[], Array]] = []
        self._pinned = np.zeros(0, dtype=np.int64)
        self._files: BlockFiles | None = None
        self._parent: BlockFiles | None = None
        self._start()

    def _start(self) -> None:
        """Own locks and threads of this process. The locks of the parent of a fork stay, so what it has pinned stays too."""
        self._parent, self._files = self._files, BlockFiles(self.folder, self.table)
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._space = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        count = len(self.table)
        self._leases, self._used = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        self._held, self._busy = np.zeros(count, dtype=np.bool_), np.zeros(count, dtype=np.bool_)
        self._leases[self._pinned], self._held[self._pinned] = 1, True

    @property
    def files(self) -> BlockFiles:
        """The files, opened by this process."""
        if self._files is None or os.getpid() != self._process:
            self._start()
        return self._files  # type: ignore[return-value]

    @property
    def num_bytes(self) -> int:
        """Bytes of this store that are in the cache."""
        return int(self.table.sizes[self.files.states != ABSENT].sum())

    def has_all(self, file: str) -> bool:
        """Whether all blocks of a file are there now."""
        return bool((self.files.states[self.table.all_ids(file)] == PRESENT).all())

    # Leases

    @contextlib.contextmanager
    def lease(self, ids: Array, *, horizon: int | None = None) -> Iterator[None]:
        """Blocks are there, verified, and stay while the block of code runs; as `acquire` says."""
        self.acquire(ids, horizon=horizon)
        try:
            yield
        finally:
            self.release(ids)

    def pin(self, ids: Array) -> None:
        """Fetch blocks, which then stay while this process has the store open."""
        self.acquire(ids)
        with self._changed:
            self._pinned = np.union1d(self._pinned, ids)

    def acquire(self, ids: Array, *, horizon: int | None = None) -> None:
        """Fetch what is absent of some blocks (sorted, each once), and keep all of them until `release`.

        Args:
            ids: the blocks.
            horizon: evict only blocks that are not used up to there, by the forecasts; None where the blocks are needed now.

        Raises:
            CacheFullError: there is no room for them. With `horizon` at once, otherwise after waiting for others.
            StoreDamagedError: bytes differ from the manifest.
            StorageError: they cannot be fetched.
        """
        files = self.files
        deadline = now_ns() + int(WAIT_S * 1e9)
        with self._changed:
            self._leases[ids] += 1
            self._used[ids] = now_ns()
        try:
            while True:
                with self._changed:
                    missing = ids[~self._held[ids]]
                    if not len(missing):
                        return
                    mine = missing[~self._busy[missing]]
                    if not len(mine):
                        self._changed.wait(0.1)  # another thread loads them
                        continue
                    self._busy[mine] = True
                try:
                    progress = self._load(files, mine, horizon)
                except CacheFullError:
                    if horizon is not None or now_ns() > deadline or self._is_too_small(ids):
                        raise
                    progress = False
                finally:
                    with self._changed:
                        self._busy[mine] = False
                        self._changed.notify_all()
                if not progress:
                    if now_ns() > deadline:
                        raise StorageError(f"{self.folder}: another process has held a block for {WAIT_S:.0f} s. Is it stopped?")
                    time.sleep(_POLL_S)
        except BaseException:
            self.release(ids)
            raise

    def release(self, ids: Array) -> None:
        """Give up blocks that `acquire` was called with; others may then evict them."""
        if os.getpid() != self._process:
            return  # acquired by the parent of a fork
        files = self.files
        with self._changed:
            self._leases[ids] -= 1
            free = ids[(self._leases[ids] == 0) & self._held[ids]]
            self._held[free] = False
            for first, count in _runs(free):
                files.lock(first, count, fcntl.F_UNLCK)

    def _is_too_small(self, ids: Array) -> bool:
        """Whether what this process itself holds, with these blocks, exceeds the cache: then waiting is useless."""
        with self._changed:
            held = self._held.copy()
        held[ids] = True
        return int(self.table.sizes[held].sum()) > self.limit

    def _keep(self, ids: Array) -> None:
        with self._changed:
            self._held[ids] = True

    def _load(self, files: BlockFiles, ids: Array, horizon: int | None) -> bool:
        """Lock blocks, and fetch the absent ones; False where other processes have locked all that are left."""
        progress = False
        for first, count in _runs(ids[files.states[ids] == PRESENT]):
            run = np.arange(first, first + count)
            if files.lock(first, count, fcntl.F_RDLCK):
                gone = files.states[run] != PRESENT  # evicted before the lock
                for block in run[gone].tolist():
                    files.lock(block, 1, fcntl.F_UNLCK)
                self._keep(run[~gone])
                progress = True
        with self._changed:
            rest = ids[~self._held[ids]]
        wanted = []
        for block in rest.tolist():
            if not files.lock(block, 1, fcntl.F_WRLCK):
                continue  # another process fetches it
            state = int(files.states[block])
            if state == UNVERIFIED and files.is_right(block):
                files.set_states(np.array([block]), PRESENT)
                state = PRESENT
            if state == PRESENT:
                files.lock(block, 1, fcntl.F_RDLCK)
                self._keep(np.array([block]))
                progress = True
            else:
                wanted.append(block)
        if wanted:
            self._fetch_all(files, np.array(wanted), horizon)
        return progress or bool(wanted)

    def _fetch_all(self, files: BlockFiles, ids: Array, horizon: int | None) -> None:
        try:
            self._reserve(files, ids, horizon)
        except BaseException:
            for first, count in _runs(ids):
                files.lock(first, count, fcntl.F_UNLCK)
            raise
        if len(ids) == 1:
            errors = [self._fetch(files, int(ids[0]))]
        else:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="stoker-blocks")
            errors = list(self._pool.map(lambda block: self._fetch(files, block), ids.tolist()))
        for error in errors:
            if error is not None:
                raise error

    def _fetch(self, files: BlockFiles, block: int) -> BaseException | None:
        table = self.table
        start, shard = int(table.starts[block]), table.shards[int(table.owners[block])]
        try:
            data = self._source.get_range(
                shard.file, start, start + int(table.sizes[block]), lambda found: hash_block(found) == table.hashes[block]
            )
            files.write(block, data)
            files.set_states(np.array([block]), PRESENT)
        except BaseException as error:
            with contextlib.suppress(OSError):
                files.punch(block)
            files.lock(block, 1, fcntl.F_UNLCK)
            return error
        files.lock(block, 1, fcntl.F_RDLCK)
        self._keep(np.array([block]))
        return None

    # Space

    def add_forecast(self, forecast: Callable[[], Array]) -> Callable[[], None]:
        """Let `forecast()` say when each block is used next (`NEVER`: not known to be). Returns what removes it."""
        with self._changed:
            self._forecasts.append(forecast)

        def remove() -> None:
            with self._changed:
                if forecast in self._forecasts:
                    self._forecasts.remove(forecast)

        return remove

    def _reserve(self, files: BlockFiles, ids: Array, horizon: int | None) -> None:
        """Make room for blocks, and count them as there."""
        needed = int(self.table.sizes[ids].sum())
        with self._space, _locked(self.root / ".space"):
            neighbours = _neighbours(self.root, self.folder)
            # A block that a killed process has reserved is counted once.
            used = self.num_bytes - int(self.table.sizes[ids[files.states[ids] != ABSENT]].sum())
            excess = used + needed + sum(neighbours.values()) - self.limit
            if excess > 0:
                excess -= self._remove_unused(neighbours, excess)
            if excess > 0:
                excess -= self._evict(files, ids, excess, horizon)
            for folder in neighbours if horizon is None else ():
                excess -= _evict_neighbour(folder, excess) if excess > 0 else 0
            if excess > 0:
                raise CacheFullError(
                    f"the cache {self.root} has {readable_bytes(self.limit)}, but blocks that are used at the same time need "
                    f"{readable_bytes(self.limit + excess)}. Raise cache_size, or use an order with smaller windows."
                )
            files.set_states(ids, RESERVED)

    def _evict(self, files: BlockFiles, wanted: Array, excess: int, horizon: int | None) -> int:
        """Evict the blocks that are used last, by the forecasts; of blocks without one, those that were used longest ago."""
        with self._changed:
            forecasts = list(self._forecasts)
        next_use = np.full(len(self.table), NEVER, dtype=np.int64)
        for forecast in forecasts:
            next_use = np.minimum(next_use, forecast())
        freed = 0
        with self._changed:
            can_go = (files.states != ABSENT) & ~self._held & ~self._busy & (self._leases == 0)
            can_go[wanted] = False
            if horizon is not None:
                can_go &= next_use > horizon
            candidates = np.flatnonzero(can_go)
            candidates = candidates[np.lexsort((self._used[candidates], -next_use[candidates]))]
        for first in range(0, len(candidates), _EVICTED_TOGETHER):
            if freed >= excess:
                break
            with self._changed:
                some = candidates[first : first + _EVICTED_TOGETHER]
                some = some[~self._held[some] & ~self._busy[some] & (self._leases[some] == 0)]
                self._busy[some] = True
            try:
                freed += files.evict(some, excess - freed)
            finally:
                with self._changed:
                    self._busy[some] = False
                    self._changed.notify_all()
        return freed

    def _remove_unused(self, neighbours: dict[Path, int], excess: int) -> int:
        """Remove stores that no process has open, those that were opened longest ago first."""
        freed = 0
        for folder in sorted(neighbours, key=_opened_at):
            if freed >= excess:
                break
            with _locked(self.root / ".lock"):
                if _is_open(folder):
                    continue
                _disk.remove_file(folder / _STATES)
                _disk.remove_folder(folder)
            freed += neighbours.pop(folder)
        return freed


def _opened_at(folder: Path) -> float:
    with contextlib.suppress(OSError):
        return (folder / _STATES).stat().st_atime
    return 0.0


def _is_open(folder: Path) -> bool:
    try:
        fd = _cache_files.disk.open_again(folder / _STATES)
    except OSError:
        return False
    try:
        return not _lock(fd, -1, 1, fcntl.F_WRLCK)
    finally:
        os.close(fd)


def _evict_neighbour(folder: Path, excess: int) -> int:
    """Evict blocks of another store that is open, as far as they are not in use."""
    try:
        manifest = load((folder / _MANIFEST).read_bytes(), str(folder / _MANIFEST))
        files = BlockFiles(folder, BlockTable(manifest, block_bytes=_block_bytes(folder)))
    except (OSError, ValueError, OptionError):  # being made or removed
        return 0
    try:
        return files.evict(np.flatnonzero(files.states != ABSENT), excess)
    finally:
        files.close()
