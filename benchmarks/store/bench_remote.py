"""What does a store in object storage cost: until the first batch of 100 GB, and in an epoch whose blocks are all cached?

The server is on loopback: of the 100 GB it has one block of 4 MiB, which it sends for every range. `tests/harness/range_server.py` is the
server of the tests, without faults.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from tests.harness.range_server import Folder, serve

import stoker
from benchmarks import record
from stoker.store import remote
from stoker.store.manifest import BLOCK_BYTES, MANIFEST_NAME, VERSION, ColumnEntry, Manifest, NonFinite, Shard, dump
from stoker.store.shards import hash_block, name_of

QUESTION = "How soon is the first batch of a remote store of 100 GB there, and how fast is an epoch whose blocks are cached?"
BATCH, LENGTH = 64, 512
BLOCK = remote.UPLOAD_BLOCK_BYTES // (4 * LENGTH)


class HugeStore:
    """A store of one column of float32, all of whose blocks are equal."""

    def __init__(self, num_bytes: int) -> None:
        self._block = np.random.default_rng(0).standard_normal(remote.UPLOAD_BLOCK_BYTES // 4).astype(np.float32).tobytes()
        series_steps = 1 << 20
        shape = [num_bytes // 4]
        blocks = [hash_block(self._block * (BLOCK_BYTES // len(self._block)))] * (num_bytes // BLOCK_BYTES)
        self._shard = Shard(file=name_of("<f4", shape, blocks), dtype="<f4", shape=shape, blocks=blocks)
        column = ColumnEntry(
            name="x",
            level="step",
            kind="number",
            unit=None,
            values=self._shard,
            texts=None,
            missing=0,
            nonfinite=NonFinite(nan=0, inf=0, first=None),
        )
        manifest = Manifest(
            format="stoker",
            version=VERSION,
            digest="",
            num_series=shape[0] // series_steps,
            num_steps=shape[0],
            length=series_steps,
            offsets=None,
            key=None,
            time=None,
            columns=[column],
            notes=[],
            sources=[],
        )
        data = dump(manifest)
        hashes = bytes.fromhex(hash_block(self._block)) * (num_bytes // len(self._block))
        name = f"blocks-{msgspec.json.decode(data, type=Manifest).digest}.xxh3"
        self._small = {MANIFEST_NAME: data, name: hashes + bytes.fromhex(hash_block(hashes))}

    def size(self, name: str) -> int | None:
        """Of an object."""
        return self._shard.num_bytes if name == self._shard.file else len(self._small[name]) if name in self._small else None

    def read(self, name: str, start: int, stop: int) -> bytes:
        """Any range is taken from the one block."""
        if name in self._small:
            return self._small[name][start:stop]
        begin = (start - 128) % len(self._block)
        return (self._block * (2 + (stop - start) // len(self._block)))[begin : begin + stop - start]


def first_batches(num_bytes: int, rounds: int, folder: Path) -> dict[str, Any]:
    """Seconds from `stoker.open` to the first batch, with an empty cache each time."""
    orders = {"sequential": stoker.Sequential(), "blocks": stoker.BlockShuffle(0, block=BLOCK, window=8 * BLOCK)}
    seconds: dict[str, list[float]] = {name: [] for name in orders}
    fetched: dict[str, int] = {}
    with serve(HugeStore(num_bytes)) as server:
        for number in range(rounds + 1):
            for name, order in orders.items():
                start = time.perf_counter()
                store: Any = stoker.open(f"{server.url}/", cache=folder / f"{name}{number}", cache_size="10GB")
                opened = time.perf_counter() - start
                feed = stoker.Feed(store, stoker.Windows(LENGTH, stride=LENGTH), batch_size=BATCH, order=order)
                batch = next(iter(feed))
                if number:
                    seconds[name].append(time.perf_counter() - start)
                    seconds.setdefault("open", []).append(opened)
                fetched[name] = store.traffic.bytes_read
                feed.close()
                del batch, feed, store
    return {
        "store bytes": num_bytes,
        "seconds": {name: record.spread(values) for name, values in seconds.items()},
        "bytes fetched": fetched,
    }


def cached_epochs(num_bytes: int, rounds: int, folder: Path) -> dict[str, Any]:
    """Epochs of the same store from disk and from a warm cache, in turn."""
    values = np.random.default_rng(0).standard_normal((16, num_bytes // 64)).astype(np.float32)
    local = stoker.Store.from_arrays(x=values).save(folder / "local.stoker")
    answer: dict[str, Any] = {"store bytes": num_bytes, "rounds": rounds}
    if local.path is None:
        raise RuntimeError("the store is on disk")
    remote.upload(local.path, f"file://{folder}/bucket")
    with serve(Folder(folder / "bucket")) as server:
        store: Any = stoker.open(f"{server.url}/", cache=folder / "epochs", cache_size="4GB")
        view = stoker.Windows(LENGTH, stride=LENGTH, tail="drop")
        for name, order in {
            "blocks": stoker.BlockShuffle(0, block=BLOCK, window=8 * BLOCK),
            "shuffle": stoker.Shuffle(0),
        }.items():
            options: dict[str, Any] = {"batch_size": BATCH, "order": order}
            feeds = {
                "disk": stoker.Feed(local, view, loading=stoker.feed.Loading(residency="stream", threads=1), **options),
                "cache": stoker.Feed(store, view, loading=stoker.feed.Loading(threads=1), **options),
            }
            for _ in feeds["cache"]:
                pass
            before = store.traffic

            def run(feed: stoker.Feed) -> None:
                for _ in feed:
                    pass

            sides = {key: (lambda feed=feed: run(feed)) for key, feed in feeds.items()}  # type: ignore[misc]
            for clock in (time.perf_counter, time.process_time):
                seconds = record.interleave(sides, rounds=rounds, clock=clock)
                kind = "speed over disk" if clock is time.perf_counter else "speed over disk, CPU time"
                answer.setdefault(name, {})[kind] = record.ratio(seconds["disk"], seconds["cache"])
            answer[name]["requests"] = (store.traffic - before).requests
            for feed in feeds.values():
                feed.close()
    return answer


def main() -> None:
    """Measure both."""
    options = record.arguments(QUESTION)
    small = options.small
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as name:
        folder = Path(name)
        answer = {
            "first batch": first_batches((1 << 30) if small else 100 << 30, 1 if small else options.rounds or 7, folder),
            "cached epoch": cached_epochs((64 << 20) if small else 128 << 20, 1 if small else options.rounds or 7, folder),
        }
    print(answer) if small else record.save("bench_remote", QUESTION, answer)


if __name__ == "__main__":
    main()
