"""An error while a batch is made reaches the caller in its place, as it is, with a note that says where to look."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.feed.stores import every_number
from tests.harness.threads import feed_threads, wait_until

import stoker
from stoker import Feed, Sequences, Shuffle, Store, Windows
from stoker.errors import FeedError, StoreDamagedError
from stoker.store import open_store

NUM_BATCHES = 6


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    yield
    gc.collect()
    assert wait_until(lambda: not feed_threads())


class Boom(Exception):
    pass


class Encoder:
    """Raises at the batch that begins with a sample."""

    def __init__(self, bad: int | None, error: BaseException) -> None:
        self.bad, self.error = bad, error

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        if batch["sample"][0] == self.bad:
            raise self.error
        return dict(batch)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    made = Store.from_arrays(x=[np.arange(5.0) + i for i in range(4 * NUM_BATCHES)])
    return made.save(tmp_path_factory.mktemp("s") / "s")


def numbered(store: Store, transform: Encoder, **loading: Any) -> Feed:
    """Batches of 4 series with their numbers."""
    options: dict[str, Any] = {"loading": stoker.feed.Loading(**loading), "returns": stoker.feed.Returns(index=True)}
    return Feed(store, Sequences(8), batch_size=4, transform=transform, **options)


@pytest.mark.promise("P7")
@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("depth", [1, 4])
@pytest.mark.parametrize("k", range(NUM_BATCHES))
def test_an_error_at_any_batch(k: int, depth: int, threads: int, store: Store) -> None:
    error = Boom("no")
    encode = Encoder(4 * k, error)
    feed = numbered(store, encode, threads=threads, prefetch=depth)
    seen: list[list[int]] = []
    with pytest.raises(Boom) as caught:
        seen.extend(batch["sample"].tolist() for batch in feed)
    assert caught.value is error
    numbers = list(range(4 * k, 4 * k + 4))
    shown = ", ".join(map(str, numbers))
    assert error.__notes__ == [
        f"while making batch {k} of this pass over epoch 0: samples {shown} of series {shown} in {feed.shards()[0]}"
    ]
    assert Path(feed.shards()[0]).exists()
    assert seen == [list(range(4 * i, 4 * i + 4)) for i in range(k)], "the batches before it come, and none after it"
    check_continues(feed, encode, k)


def check_continues(feed: Feed, encode: Encoder, k: int) -> None:
    """The state says what was handed out, and the feed can be used again."""
    state = feed.state_dict()
    assert (state["epoch"], state["position"]) == (0, 4 * k)
    encode.bad = None
    assert len(list(feed)) == NUM_BATCHES
    feed.load_state_dict(state)
    assert [batch["sample"][0].item() for batch in feed] == list(range(4 * k, 4 * NUM_BATCHES, 4))


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), MemoryError()], ids=repr)
def test_errors_that_are_not_exceptions(error: BaseException, threads: int, store: Store) -> None:
    feed = numbered(store, Encoder(8, error), threads=threads)
    with pytest.raises(type(error)) as caught:
        list(feed)
    assert caught.value is error


@pytest.mark.promise("P7")
@pytest.mark.parametrize("threads", [0, 2])
def test_a_stop_iteration_of_an_encoder_does_not_end_the_epoch(threads: int, store: Store) -> None:
    feed = numbered(store, Encoder(8, StopIteration()), threads=threads)
    with pytest.raises(FeedError, match=r"making a batch raised StopIteration\(\), which means the end of an iterator") as caught:
        list(feed)
    assert "while making batch 2 of this pass" in caught.value.__notes__[0]


class BrokenOrder(Shuffle):
    """Knows no position from 12 on."""

    def over(self, samples: Any, **options: Any) -> Any:
        plan = super().over(samples, **options)
        original = plan.numbers

        def numbers(epoch: int, start: int, stop: int) -> Any:
            if stop > 12:
                raise Boom("no such position")
            return original(epoch, start, stop)

        plan.numbers = numbers  # type: ignore[method-assign]
        return plan


@pytest.mark.parametrize("view", [Sequences(8), Windows(5)], ids=str)
@pytest.mark.parametrize("threads", [0, 1, 3])
def test_an_error_of_an_order(threads: int, view: Any, store: Store) -> None:
    """Also where several batches are made together, those before the bad one come."""
    feed = Feed(store, view, batch_size=1, order=BrokenOrder(), loading=stoker.feed.Loading(threads=threads))
    seen: list[Any] = []
    with pytest.raises(Boom, match="no such position"):
        seen.extend(feed)
    assert len(seen) == feed.state_dict()["position"] == 12


@pytest.mark.promise("P7")
@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("residency", ["host", "stream", "device"])
def test_a_damaged_store_is_named_where_it_is_damaged(residency: str, threads: int, tmp_path: Path) -> None:
    """An offset that was changed on disk after the pack: found when its series is asked for, not before, and never followed."""
    sound = every_number().save(tmp_path / "s")
    manifest = sound.manifest
    path = tmp_path / "s" / manifest.offsets.file
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[128 + 8 * 5 : 128 + 8 * 6] = (10**15).to_bytes(8, "little")
    path.write_bytes(data)
    feed = Feed(
        open_store(tmp_path / "s"),
        Sequences(8),
        batch_size=2,
        loading=stoker.feed.Loading(threads=threads, residency=residency),
        columns=["xf4"],
    )
    batches = iter(feed)
    if residency != "device":  # which looks at many batches at once
        next(batches), next(batches)
    with pytest.raises(StoreDamagedError, match="offsets of series 4 are 15 and 1,000,000,000,000,000 of 41"):
        next(batches)
