"""`stoker order`: how good a shuffle is and what it costs, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.cli.calling import Done

from stoker.feed.feed import Feed
from stoker.sampling import shuffle_quality
from stoker.sampling.orders import BlockShuffle
from stoker.sampling.views import Segments, Sequences, Windows
from stoker.store.pack.api import pack

Stoker = Callable[..., Done]
NUM_EVENTS = 6000


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at fewer batches."""
    monkeypatch.setattr(shuffle_quality, "NUM_COUNTED", 2**17)


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ragged series of three columns."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 60, NUM_EVENTS)
    total = int(lengths.sum())
    table = pa.table(
        {
            "event": np.repeat(np.arange(NUM_EVENTS), lengths),
            "time": rng.integers(0, 10**6, total),
            "charge": rng.random(total).astype(np.float32),
            "word": pa.array(["a", "b"] * (total // 2) + ["a"] * (total % 2)),
        }
    )
    path = tmp_path_factory.mktemp("store") / "events.stoker"
    pack(table, path, series="event")
    return path


def judged(stoker: Stoker, *arguments: str | Path) -> dict[str, Any]:
    done = stoker("order", *arguments, "--json")
    assert (done.code, done.err) == (0, "")
    found: dict[str, Any] = json.loads(done.out)
    return found


def test_orders_stand_side_by_side(stoker: Stoker, events: Path) -> None:
    done = stoker("order", events, "--batch-size", "32", "--block", "16", "--window", "256")
    assert (done.code, done.err) == (0, "")
    words = " ".join(done.out.split())
    assert f"{NUM_EVENTS:,} samples of" in words
    assert "(one per series), batches of 32" in words
    assert "sequential shuffle block" in words
    assert "effective batch size 1 of 32 32 of 32 12 of 32" in words
    assert "spread inside a batch 0.01 1.00 0.97" in words
    assert "mixed in 23 windows of about 256 (as given: a batch of 32 is worth" in words
    assert "A batch of 32 is worth 12 where 16 neighbours are alike: less than 85% of itself." in words
    assert "Enough for 85%: one window of all samples (" in words
    assert "which BlockShuffle() takes by itself." in words


def test_json_for_programs(stoker: Stoker, events: Path) -> None:
    found = judged(stoker, events, "--batch-size", "32", "--block", "16", "--window", "256")
    assert set(found) == {"path", "view", "num_samples", "sample_bytes", "batch_size", "order", "orders", "enough"}
    assert (found["num_samples"], found["batch_size"], found["order"]) == (NUM_EVENTS, 32, "block")
    assert list(found["orders"]) == ["sequential", "shuffle", "block"]
    worths = {name: order["quality"]["worth"] for name, order in found["orders"].items()}
    assert worths["sequential"] < worths["block"] < worths["shuffle"]
    costs = {name: order["reads"]["amplification"] for name, order in found["orders"].items()}
    assert costs["sequential"] == pytest.approx(1, abs=0.01)
    assert costs["sequential"] < costs["block"] < costs["shuffle"]
    assert (found["orders"]["block"]["block"], found["orders"]["block"]["window"]) == (16, 256)
    assert found["enough"]["worth"] == 0.85


@pytest.mark.parametrize(
    ("text", "view"),
    [
        (None, Sequences(10**6)),
        ("sequences:20", Sequences(20)),
        ("segments:16", Segments(16)),
        ("windows:8,stride=2,horizon=1", Windows(8, stride=2, horizon=1)),
    ],
)
def test_it_chooses_what_a_feed_chooses(stoker: Stoker, events: Path, text: str | None, view: Any) -> None:
    from stoker.store.versions import open_store

    found = judged(stoker, events, "--batch-size", "8", *(["--view", text] if text else []))
    feed = Feed(open_store(events), view, batch_size=8, order=BlockShuffle())
    block = found["orders"]["block"]
    assert {"block": block["block"], "window": block["window"]} == feed.plan.shape
    assert block["description"] == feed.plan.describe()
    assert found["num_samples"] == feed.num_samples
    assert (found["enough"]["block"], found["enough"]["window"]) == (block["block"], block["window"])


def test_names_that_steer_a_terminal_are_shown(stoker: Stoker, tmp_path: Path) -> None:
    path = tmp_path / "a\x1b[31mb"
    pack({"x": np.arange(10.0)}, path)
    assert "\x1b" not in stoker("order", path).out
