"""From a cold cache: what share of a disk's sequential bandwidth does a block shuffle reach, and how much does it read too much?

Before each run the files are dropped from the page cache, and `mincore` must find nothing of them there. Sequential reading is
the faster, in each round, of a loop of `preadv` and of copying a memory map from its beginning to its end; a feed also makes
batches of what it reads, with the threads that it takes by itself. Bytes read are those that the kernel counts for this process.

A fast disk may really be the cache of a host, and memory may be larger than any store that a benchmark likes to make. So the
same is measured in control groups that the caller has made, each named by its folder:

    mkdir /sys/fs/cgroup/blkio/slow /sys/fs/cgroup/memory/small
    echo "254:0 500000000" > /sys/fs/cgroup/blkio/slow/blkio.throttle.read_bps_device
    echo 600M > /sys/fs/cgroup/memory/small/memory.limit_in_bytes
    python -m benchmarks.feed.bench_cold --group /sys/fs/cgroup/blkio/slow
                                    --group /sys/fs/cgroup/blkio/slow,/sys/fs/cgroup/memory/small
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import itertools
import json
import mmap
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import stoker
from benchmarks import record

QUESTION = (
    "What share of a cold disk's sequential bandwidth does a block shuffle reach, and how many bytes does it read for one used?"
)

Array = npt.NDArray[Any]
PIECE_BYTES = 2**20
SHUFFLED_BATCHES = 300
LIMITS = ("blkio.throttle.read_bps_device", "io.max", "memory.limit_in_bytes", "memory.max")


def main() -> None:
    """Ragged events of four columns and plain segments, in each group."""
    options = arguments()
    rounds = 1 if options.small else options.rounds or 5
    sizes = {"events": 2**22, "segments": 2**22} if options.small else {"events": 2**31, "segments": 2**30}
    with tempfile.TemporaryDirectory() as name:
        stores = {"events": Path(name) / "events", "segments": Path(name) / "segments"}
        make_events(stores["events"], sizes["events"])
        make_segments(stores["segments"], sizes["segments"])
        answer: dict[str, Any] = {
            "rounds": rounds,
            "stores": {
                "events": "ragged, 4 columns of 11 bytes per step, batches of 128 events end to end",
                "segments": "2048 float32 each, batches of 64",
            },
            "bytes of the stores": sizes,
            "kernel's own read-ahead": read_ahead(Path(name)),
        }
        for groups in [[], *(one.split(",") for one in options.group)]:
            found = in_groups(groups, stores, rounds)
            answer[found.pop("where")] = found
    print(json.dumps(answer, indent=1)) if options.small else record.save("bench_cold", QUESTION, answer)


def arguments() -> argparse.Namespace:
    """Those of every benchmark, and control groups to measure in."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--small", action="store_true", help="A quick run that writes no result file.")
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--group", action="append", default=[], metavar="FOLDER[,FOLDER]", help="Also measure in these groups.")
    return parser.parse_args()


def make_events(path: Path, num_bytes: int) -> None:
    """Long-tailed lengths; values that no disk could make smaller."""
    rng = np.random.default_rng(0)
    lengths = 12 + rng.lognormal(4.2, 1.0, num_bytes // 11 // 120).astype(np.int64)
    steps = int(lengths.sum())
    stoker.Store.from_arrays(
        lengths=lengths,
        time=rng.random(steps, dtype=np.float32),
        charge=rng.random(steps, dtype=np.float32),
        sensor_id=rng.integers(0, 5160, steps, dtype=np.int16),
        auxiliary=rng.integers(0, 2, steps, dtype=np.uint8).view(np.bool_),
    ).save(path)


def make_segments(path: Path, num_bytes: int) -> None:
    """All of one length."""
    rng = np.random.default_rng(0)
    count = num_bytes // 8192
    stoker.Store.from_arrays(lengths=[2048] * count, x=rng.random(count * 2048, dtype=np.float32)).save(path)


def read_ahead(folder: Path) -> str:
    """What the kernel reads ahead of a sequential reader."""
    number = folder.stat().st_dev
    queue = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/queue/read_ahead_kb")
    return f"{int(queue.read_text()) * 1024:,} bytes" if queue.exists() else "unknown"


def in_groups(groups: list[str], stores: dict[str, Path], rounds: int) -> dict[str, Any]:
    """Measure in a process of its own that has joined these control groups."""
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    child = context.Process(target=measure, args=(groups, stores, rounds, answers))
    child.start()
    child.join()
    if child.exitcode:
        raise SystemExit(f"the measurement in {groups or 'no group'} ended with exit code {child.exitcode}.")
    found: dict[str, Any] = answers.get()
    return found


def measure(groups: list[str], stores: dict[str, Path], rounds: int, answers: Any) -> None:
    """The child: join, and measure store after store."""
    for group in groups:
        (Path(group) / "cgroup.procs").write_text(str(os.getpid()))
    limits = [one for group in groups for name in LIMITS if (one := Path(group) / name).exists()]
    words = ", ".join(f"{limit.name} {limit.read_text().strip()}" for limit in limits)
    found: dict[str, Any] = {"where": f"limited by {words}" if groups else "this machine as it is"}
    for name, path in stores.items():
        found[name] = measure_store(path, 128 if name == "events" else 64, rounds)
        print(found["where"], name, json.dumps(found[name], indent=1), flush=True)
    answers.put(found)


def measure_store(path: Path, batch_size: int, rounds: int) -> dict[str, Any]:
    """All sides in turn, each from a cold cache."""
    files = sorted(one for one in path.glob("*.npy") if one.stat().st_size > 2**20)

    def fed(order: Any, most: int | None = None) -> Callable[[], int]:
        return lambda: through(path, order, batch_size, most)

    blocks = {"block shuffle": stoker.BlockShuffle(0), "block shuffle, 64 in 16,384": stoker.BlockShuffle(0, 64, 16_384)}
    sides = {
        "preadv": lambda: read(files),
        "memory map": lambda: copy_map(files),
        "feed, sequential": fed(stoker.Sequential()),
        **{f"feed, {name}": fed(order) for name, order in blocks.items()},
        "feed, full shuffle": fed(stoker.Shuffle(0), SHUFFLED_BATCHES),
    }
    rates: dict[str, list[float]] = {name: [] for name in sides}
    amplified: dict[str, list[float]] = {name: [] for name in sides}
    processing: dict[str, list[float]] = {name: [] for name in sides}
    for number, (name, run) in itertools.product(range(rounds + 1), sides.items()):
        drop(files)
        read_before, start, cpu = bytes_read(), time.perf_counter(), time.process_time()
        used = run()
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        if number:  # the first round is for caches of code and disks
            rates[name].append(used / seconds / 1e6)
            amplified[name].append((bytes_read() - read_before) / used)
            processing[name].append(cpu / used * 1e9)
    sequential = [max(pair) for pair in zip(rates["preadv"], rates["memory map"], strict=True)]
    view = stoker.Sequences(10**6, layout="packed")
    return {
        "orders": {
            name: stoker.Feed(stoker.open(path), view, batch_size=batch_size, order=order).plan.describe()
            for name, order in blocks.items()
        },
        "sides": {
            name: {
                "MB/s used": record.spread(rates[name]),
                "share of sequential": record.ratio(rates[name], sequential),
                "bytes read for one used": round(statistics.median(amplified[name]), 3),
                "CPU seconds a GB": round(statistics.median(processing[name]), 2),
            }
            for name in sides
        },
    }


def through(path: Path, order: Any, batch_size: int, most: int | None) -> int:
    """Batches of an epoch, or the first of them; returns the bytes of steps that they hold."""
    view = stoker.Sequences(10**6, layout="packed")
    used = 0
    with stoker.Feed(
        stoker.open(path),
        view,
        batch_size=batch_size,
        order=order,
        loading=stoker.feed.Loading(residency="stream"),
        last_batch="short",
    ) as feed:
        for batch in itertools.islice(feed, most):
            used += sum(tensor.nbytes for name, tensor in batch.items() if name != "cu_seqlens")
    return used


def read(files: list[Path]) -> int:
    """All of them, from the first byte to the last, into a buffer that is used again."""
    buffer = memoryview(bytearray(PIECE_BYTES))
    total = 0
    for path in files:
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                total += count
    return total


def copy_map(files: list[Path]) -> int:
    """The same through memory maps."""
    buffer = np.empty(PIECE_BYTES, dtype=np.uint8)
    total = 0
    for path in files:
        mapped = np.memmap(path, dtype=np.uint8, mode="r")
        for start in range(0, len(mapped), PIECE_BYTES):
            piece = mapped[start : start + PIECE_BYTES]
            np.copyto(buffer[: len(piece)], piece)
        total += len(mapped)
    return total


def drop(files: list[Path]) -> None:
    """Take files out of the page cache. What is still mapped, or on its way from the disk, cannot be taken, so it may need time."""
    left = 1
    for _ in range(100):
        gc.collect()
        for path in files:
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        left = sum(resident_bytes(path) for path in files)
        if not left:
            return
        time.sleep(0.02)
    raise SystemExit(f"{left:,} bytes of the store stay in the page cache; somebody else has them open.")


def resident_bytes(path: Path) -> int:
    """Bytes of a file that are in the page cache."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        view = np.frombuffer(mapped, dtype=np.uint8)
        pages = np.zeros(-(-len(view) // mmap.PAGESIZE), dtype=np.uint8)
        address, size, found = (ctypes.c_void_p(view.ctypes.data), ctypes.c_size_t(len(view)), ctypes.c_void_p(pages.ctypes.data))
        if ctypes.CDLL(None, use_errno=True).mincore(address, size, found):
            raise OSError(ctypes.get_errno(), f"mincore failed for {path}")
        del view
        return int(np.count_nonzero(pages & 1)) * mmap.PAGESIZE


def bytes_read() -> int:
    """What this process has caused to be read from disks."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("read_bytes")).split()[1])


if __name__ == "__main__":
    main()
