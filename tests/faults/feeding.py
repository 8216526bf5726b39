"""Feeds in forked children: what each case of the fault tests does there. Importing this makes the kernels ready."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tests.harness.flat_feed import flat_feed

import stoker
from stoker import Feed, Sequences, Shuffle, Store, Windows, open
from stoker.errors import FeedError
from stoker.feed.gather import Ring


def small_store(size: int = 40) -> Store:
    return Store.from_arrays(x=[np.arange(8.0) + i for i in range(size)])


def samples(batch: dict[str, Any]) -> list[int]:
    numbers: list[int] = batch["sample"].tolist()
    return numbers


def make_feed(threads: int, *, windows: bool = False, **options: Any) -> Feed:
    """40 samples in 10 batches; or windows, in 40 batches that may be gathered several at a time."""
    given = {"batch_size": 1 if windows else 4, "order": Shuffle(), "return_index": True, **options}
    return flat_feed(small_store(), Windows(8) if windows else Sequences(8), threads=threads, **given)


def in_a_fork(function: Callable[[], Any]) -> Any:
    """What a function returns in a forked process, as JSON; it must end."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        os.write(writing, json.dumps(function()).encode())
        os._exit(0)
    os.close(writing)
    _, status = os.waitpid(pid, 0)
    if status:
        raise ChildProcessError(f"the fork ended with status {os.waitstatus_to_exitcode(status)}")
    with os.fdopen(reading) as pipe:
        return json.load(pipe)


def fork_with(threads: int, windows: bool) -> dict[str, Any]:
    """Fork in the middle of an epoch: what the fork gets of the pass, of a pass of its own, and what is left for the parent."""
    feed = make_feed(threads, windows=windows)
    batches = iter(feed)
    first = samples(next(batches))

    def fork() -> dict[str, Any]:
        try:
            of_the_pass: Any = samples(next(batches))
        except FeedError as error:
            of_the_pass = str(error)
        own = [samples(batch) for batch in make_feed(threads, windows=windows)]
        feed.set_epoch(0)
        again = [samples(batch) for batch in feed]
        return {"pass": of_the_pass, "own": own, "again": again}

    found = in_a_fork(fork)
    return {"first": first, "rest": [samples(batch) for batch in batches], **found}


def fork_while_a_slot_is_taken() -> int:
    """Fork while a thread holds the lock of the ring."""
    ring = Ring(pinned=False, keep=4)
    asked, answer = threading.Event(), threading.Event()

    class Copy:
        def query(self) -> bool:
            asked.set()
            return answer.wait(30)

    slot = ring.take(10)
    slot.copied = Copy()
    ring.give_back(slot)
    thread = threading.Thread(target=lambda: ring.take(10))
    thread.start()
    asked.wait(30)

    def fork() -> int:
        answer.set()  # there is nobody in the fork who would give the lock back
        return ring.take(10).capacity

    found = in_a_fork(fork)
    answer.set()
    thread.join(30)
    return int(found)


def wait_for_ctrl_c(threads: int) -> dict[str, Any]:
    """Wait for a batch that does not come; go on with the same pass after Ctrl-C."""
    hold = threading.Event()
    here = os.getpid()

    def encode(batch: dict[str, Any]) -> dict[str, Any]:
        if batch["sample"][0] == third and not hold.is_set():
            threading.Timer(0.05, lambda: os.kill(here, signal.SIGINT)).start()
            hold.wait(30)
        return {"sample": batch["sample"]}

    expected = [samples(batch) for batch in make_feed(0)]
    third = expected[2][0]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    batches = iter(make_feed(threads, transform=encode))
    found = [samples(next(batches)), samples(next(batches))]
    interrupted = False
    try:
        found.append(samples(next(batches)))
    except KeyboardInterrupt:
        interrupted = True
    hold.set()
    found += [samples(batch) for batch in batches]
    return {"interrupted": interrupted, "found": found, "expected": expected}


def truncate_while_reading(path: str) -> None:
    """Cut off a file that is mapped: the next look at it kills this process."""
    store = open(path)
    feed = Feed(store, Windows(64), batch_size=8, columns=["x"])
    next(iter(feed))
    for shard in feed.shards():
        Path(shard).chmod(0o644)
        os.truncate(shard, 4096)
    list(feed)


def unlink_while_reading(path: str, residency: str) -> list[list[float]]:
    """Remove all files of a store in the middle of an epoch, and go on."""
    feed = Feed(
        open(path),
        Windows(64, stride=64),
        batch_size=8,
        columns=["x"],
        order=Shuffle(),
        loading=stoker.feed.Loading(residency=residency, threads=2),
    )
    batches = iter(feed)
    found = [next(batches)["x"][:, 0].tolist()]
    for file in Path(path).iterdir():
        file.unlink()
    return found + [batch["x"][:, 0].tolist() for batch in batches]


def close_while_encoding(delay: float) -> int:
    """Close a feed whose encoder sleeps; returns the threads that are left."""
    begun = threading.Semaphore(0)

    def encode(batch: dict[str, Any]) -> dict[str, Any]:
        begun.release()
        time.sleep(delay)
        return dict(batch)

    feed = make_feed(2, transform=encode)
    batches = iter(feed)
    for _ in range(2):
        begun.acquire(timeout=30)
    feed.close()
    left = sum(thread.name.startswith("stoker-feed") for thread in threading.enumerate())
    if next(batches, None) is not None:
        raise ValueError("a closed pass gave a batch")
    return left


list(make_feed(0))
list(
    Feed(
        small_store(),
        Windows(4),
        batch_size=4,
        order=Shuffle(),
        loading=stoker.feed.Loading(residency="device", threads=0),
    )
)
