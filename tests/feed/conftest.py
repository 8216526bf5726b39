"""What the tests of feeds share."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from tests.harness.threads import feed_threads, wait_until

from stoker.feed.gather import Ring


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots are filled with 0xCB whenever they are taken: what is used too early or was never written shows."""
    monkeypatch.setitem(Ring.__init__.__kwdefaults__, "poison", True)  # type: ignore[index]


@pytest.fixture
def no_thread_left() -> Iterator[None]:
    """Fail a test after which a thread of a feed goes on."""
    yield
    gc.collect()
    assert wait_until(lambda: not feed_threads())
