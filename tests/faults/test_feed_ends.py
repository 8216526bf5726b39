"""Ends: closed, left, forgotten, forked, interrupted, or the interpreter gone; a feed never hangs and leaves no thread."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.faults import feeding
from tests.harness import Zygote
from tests.harness.threads import feed_threads, wait_until

from stoker import Feed
from stoker.feed import prefetch
from stoker.feed.prefetch import _end as end

pytestmark = pytest.mark.promise("P7")


def all_end() -> bool:
    return wait_until(lambda: not feed_threads())


def leave_early(feed: Feed) -> None:
    for _ in feed:
        break


def forget(feed: Feed) -> None:
    batches = iter(feed)
    next(batches)
    del batches


def forget_before_the_first(feed: Feed) -> None:
    iter(feed)


def close(feed: Feed) -> None:
    batches = iter(feed)
    next(batches)
    feed.close()
    assert next(batches, None) is None
    feed.close()


def close_by_with(feed: Feed) -> None:
    with feed:
        batches = iter(feed)
        next(batches)
    assert next(batches, None) is None


def read_all(feed: Feed) -> None:
    for _ in feed:
        pass


def fail(feed: Feed) -> None:
    def train() -> None:
        for _ in feed:
            raise ValueError("of the training")

    with pytest.raises(ValueError, match="of the training"):
        train()


def leave_a_cycle(feed: Feed) -> None:
    batches: Any = iter(feed)
    next(batches)
    circle: list[Any] = [batches]
    circle.append(circle)


@pytest.mark.parametrize("options", [{}, {"windows": True}, {"residency": "device"}], ids=["sequences", "windows", "device"])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    "end",
    [leave_early, forget, forget_before_the_first, close, close_by_with, read_all, fail, leave_a_cycle],
    ids=lambda f: f.__name__,
)
def test_threads_end_with_their_pass(end: Callable[[Feed], None], threads: int, options: dict[str, Any]) -> None:
    feed = feeding.make_feed(threads, **options)
    end(feed)
    gc.collect()
    assert all_end()
    assert len(list(feed)) == len(feed), "and the feed can be used again"
    assert all_end()


def test_negative_control_a_pass_that_does_not_end_its_threads_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(prefetch, "_end", lambda *held: ends.append(held))
        leave_early(feeding.make_feed(3))
        gc.collect()
        assert len(feed_threads()) == 3
    [held] = ends
    end(*held)
    assert all_end()


@pytest.mark.parametrize(("delay", "left"), [(0.05, 0), (3600.0, 2)], ids=["slow", "stuck"])
def test_close_waits_for_a_slow_encoder_but_not_for_a_stuck_one(delay: float, left: int, torch_zygote: Zygote) -> None:
    """A stuck one is left to itself: its thread dies with the process."""
    assert torch_zygote.run(feeding.close_while_encoding, delay=delay).check() == left


@pytest.mark.parametrize("windows", [False, True])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_fork_gets_no_threads_and_is_reported(threads: int, windows: bool, torch_zygote: Zygote) -> None:
    found = torch_zygote.run(feeding.fork_with, threads=threads, windows=windows).check()
    epoch = [feeding.samples(batch) for batch in feeding.make_feed(0, windows=windows)]
    assert "a fork made process" in found["pass"]
    assert found["pass"].endswith("Call iter(feed) in the process that uses it.")
    assert found["own"] == epoch
    assert found["again"] == epoch
    assert [found["first"], *found["rest"]] == epoch, "the parent notices nothing"


def test_a_fork_does_not_wait_for_a_lock_of_its_parent(torch_zygote: Zygote) -> None:
    assert torch_zygote.run(feeding.fork_while_a_slot_is_taken, seconds=60).check() >= 10


@pytest.mark.parametrize("threads", [1, 3])
def test_ctrl_c_interrupts_the_wait_and_loses_no_batch(threads: int, torch_zygote: Zygote) -> None:
    found = torch_zygote.run(feeding.wait_for_ctrl_c, threads=threads).check()
    assert found["interrupted"]
    assert found["found"] == found["expected"]


EXIT = """
import sys, threading, time
from tests.faults import feeding
how, threads = sys.argv[1], int(sys.argv[2])
def encode(batch):
    if how == "stuck":
        threading.Event().wait()
    time.sleep(0.02)
    return dict(batch)
feed = feeding.make_feed(threads, transform=None if how == "quick" else encode)
batches = iter(feed)
if how != "stuck":
    next(batches)
print("the end", flush=True)
if how == "error":
    raise ValueError("of the training")
"""


@pytest.mark.parametrize(
    ("how", "threads", "status"),
    [
        pytest.param("quick", 3, 0, marks=pytest.mark.slow),
        pytest.param("slow", 2, 0, marks=pytest.mark.slow),
        ("stuck", 2, 0),
        pytest.param("error", 2, 1, marks=pytest.mark.slow),
    ],
)
def test_the_interpreter_ends_with_live_threads(how: str, threads: int, status: int) -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", EXIT, how, str(threads)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=280, check=False)
    assert (done.returncode, done.stdout) == (status, "the end\n"), done.stderr
    assert done.stderr == "" if status == 0 else done.stderr.rstrip().endswith("ValueError: of the training")
