"""Ranks: laid end to end their shares are the positions, and no rank has more than one more than another."""

from __future__ import annotations

import itertools
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from stoker.errors import OptionError
from stoker.feed.prefetch import FeedRanks


@given(start=st.integers(0, 2**62), count=st.integers(0, 10_000), world=st.integers(1, 300))
def test_shares_are_the_whole(start: int, count: int, world: int) -> None:
    shares = [FeedRanks(rank, world).share(start, start + count) for rank in range(world)]
    assert shares[0][0] == start
    assert shares[-1][1] == start + count
    assert all(a[1] == b[0] for a, b in itertools.pairwise(shares))
    sizes = {stop - first for first, stop in shares}
    assert max(sizes) - min(sizes) <= 1


@given(start=st.integers(0, 2**62), batch=st.integers(1, 1000), world=st.integers(1, 300))
def test_a_whole_step_gives_each_a_batch(start: int, batch: int, world: int) -> None:
    for rank in (0, world // 2, world - 1):
        assert FeedRanks(rank, world).share(start, start + batch * world) == (start + batch * rank, start + batch * (rank + 1))


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, (0, 1)),
        ({"RANK": "3", "WORLD_SIZE": "8"}, (3, 8)),
        ({"RANK": " 1 ", "WORLD_SIZE": "2"}, (1, 2)),
        ({"RANK": "", "WORLD_SIZE": ""}, (0, 1)),
        ({"WORLD_SIZE": "1"}, (0, 1)),
    ],
)
def test_ranks_are_read_from_the_environment(
    variables: dict[str, str], expected: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    assert FeedRanks.find(None, None) == FeedRanks(*expected)


def test_arguments_go_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert FeedRanks.find(0, 2) == FeedRanks(0, 2)
    assert FeedRanks.find(np.int64(1), np.int32(2)) == FeedRanks(1, 2)


@pytest.mark.parametrize(
    ("rank", "world_size", "message"),
    [
        (0, None, "rank is 0 and world_size None; give both, or none to read RANK and WORLD_SIZE."),
        (None, 2, "rank is None and world_size 2; give both"),
        (2, 2, "rank 2 of 2 is invalid; expected 0 <= rank < world_size."),
        (-1, 2, "rank -1 of 2 is invalid"),
        (0, 0, "rank 0 of 0 is invalid"),
        (0.5, 2, r"rank 0.5 of 2 is invalid"),
        ("0", "2", r"rank '0' of '2' is invalid"),
        (False, True, "rank False of True is invalid"),
    ],
)
def test_invalid_ranks_are_refused(rank: Any, world_size: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        FeedRanks.find(rank, world_size)


@pytest.mark.parametrize(("rank", "world_size"), [("one", "2"), ("1", "two"), ("1.0", "2")])
def test_an_environment_that_cannot_be_is_refused(rank: str, world_size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", world_size)
    with pytest.raises(OptionError, match=r"the environment variable (RANK|WORLD_SIZE) is '.*'; expected an integer."):
        FeedRanks.find(None, None)


def test_a_rank_without_its_number_of_ranks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(OptionError, match="rank 1 of 1 is invalid"):
        FeedRanks.find(None, None)
