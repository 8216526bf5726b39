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

from stoker.cli.order import parse_view
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


def test_lines_fit_a_terminal(stoker: Stoker, events: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = stoker("order", events).out
    assert max(map(len, out.splitlines())) <= 80
    assert "effective batch size " in out
    assert "bytes read per byte used " in out


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


def test_a_good_block_order_is_called_good(stoker: Stoker, events: Path) -> None:
    words = " ".join(stoker("order", events, "--batch-size", "8", "--block", "4", "--window", "400").out.split())
    assert "at least 85% of itself" in words
    found = judged(stoker, events, "--batch-size", "8", "--block", "4", "--window", "400")
    assert found["orders"]["block"]["quality"]["worth"] > 0.9


@pytest.mark.parametrize("order", ["sequential", "shuffle"])
def test_other_orders_are_judged(stoker: Stoker, events: Path, order: str) -> None:
    words = " ".join(stoker("order", events, "--order", order, "--batch-size", "16").out.split())
    described, worth = {"sequential": ("sequential", "worth 1 where"), "shuffle": ("shuffled, seed 0", "worth 16: at least")}[order]
    assert f"order: {described}." in words
    assert f"A batch of 16 is {worth}" in words


def test_columns_and_seed_reach_the_order(stoker: Stoker, events: Path) -> None:
    both, one = judged(stoker, events), judged(stoker, events, "--columns", "charge", "--seed", "5")
    assert one["sample_bytes"] < both["sample_bytes"]
    assert "seed 5" in one["orders"]["shuffle"]["description"]


def test_what_is_in_no_sample_is_said(stoker: Stoker, events: Path) -> None:
    words = " ".join(stoker("order", events, "--view", "segments:50,tail=drop").out.split())
    assert "are in no window (tail='drop')." in words


@pytest.mark.parametrize(
    ("text", "view"),
    [
        ("windows:48", Windows(48)),
        ("windows:48,stride=4,horizon=1,tail=drop", Windows(48, stride=4, horizon=1, tail="drop")),
        ("windows:48,compat=time-moe", Windows(48, compat="time-moe")),
        ("segments:2048,shift=1", Segments(2048, shift=1)),
        ("sequences:512,keep=last", Sequences(512, keep="last")),
    ],
)
def test_views_are_read(text: str, view: Any) -> None:
    assert parse_view(text) == view


SYNTAX = "expected KIND:LENGTH with options behind it, such as windows:48  windows:48,stride=4,horizon=1"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--view", "window:48"], f"--view is 'window:48'; {SYNTAX}"),
        (["--view", "windows"], f"--view is 'windows'; {SYNTAX}"),
        (["--view", "windows:"], f"--view is 'windows:'; {SYNTAX}"),
        (["--view", "windows:-5"], f"--view is 'windows:-5'; {SYNTAX}"),
        (
            ["--view", "segments:8,stride=2"],
            "--view has 'stride=2'; segments take horizon=…, shift=…, tail=…, compat=…, max_gap=…, gaps=….",
        ),
        (
            ["--view", "windows:8,stride"],
            "--view has 'stride'; windows take stride=…, horizon=…, shift=…, tail=…, compat=…, max_gap=…, gaps=….",
        ),
        (["--view", "windows:8,stride=0"], "Windows: stride is 0; expected an integer from 1."),
        (["--view", "windows:8,stride=two"], "Windows: stride is 'two'; expected an integer from 1."),
        (["--view", "sequences:8,layout=packed"], "--view has 'layout=packed'; sequences take keep=…."),
        (["--view", "windows:1000,tail=drop"], "events.stoker has no sample of windows:1000,tail=drop."),
        (["--order", "shuffle", "--block", "4"], "--block and --window are for --order block, but --order is shuffle."),
        (["--block", "9", "--window", "8"], "BlockShuffle: a window of 8 samples cannot hold a block of 9."),
        (["--columns", "nothing"], "has no column 'nothing'; it has event, time, charge, word."),
    ],
)
def test_an_error_is_one_line(stoker: Stoker, events: Path, arguments: list[str], line: str) -> None:
    done = stoker("order", events, *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("stoker: ")
    assert done.err.count("\n") == 1
    assert line in done.err


@pytest.mark.parametrize("arguments", [["--batch-size", "0"], ["--order", "random"], ["--block", "x"], ["--seed", "-1"]])
def test_a_wrong_call_is_explained(stoker: Stoker, events: Path, arguments: list[str]) -> None:
    done = stoker("order", events, *arguments)
    assert (done.code, done.out) == (2, "")
    assert f"Invalid value for '{arguments[0]}'" in done.err


def test_no_store(stoker: Stoker, tmp_path: Path) -> None:
    assert stoker("order", tmp_path / "gone").err.startswith(f"stoker: {tmp_path / 'gone'} does not exist.")


def test_few_series_are_not_trouble(stoker: Stoker, tmp_path: Path) -> None:
    pack({"x": np.arange(10.0)}, tmp_path / "out")
    found = judged(stoker, tmp_path / "out")
    assert found["num_samples"] == 1
    assert stoker("order", tmp_path / "out").code == 0


def test_names_that_steer_a_terminal_are_shown(stoker: Stoker, tmp_path: Path) -> None:
    path = tmp_path / "a\x1b[31mb"
    pack({"x": np.arange(10.0)}, path)
    assert "\x1b" not in stoker("order", path).out
