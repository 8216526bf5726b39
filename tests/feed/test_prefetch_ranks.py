"""Ranks: laid end to end their shares are the positions, and no rank has more than one more than another."""

from __future__ import annotations

import itertools

import hypothesis.strategies as st
import pytest
from hypothesis import given

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
