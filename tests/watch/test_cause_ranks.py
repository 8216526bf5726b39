"""The rank that slows all others down: what ranks publish, and which of them is named."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from stoker.watch.cause import Explanation, WatchedRanks, find_ranks, slow_rank


class DictStore(dict[str, str]):
    """Has the methods of torch's key-value store."""

    def set(self, key: str, value: str) -> None:
        self[key] = value

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)


STEP = Explanation(cause="step", evidence="the step", share=0.0, busy_share=0.1)
LOADER = Explanation(cause="loader", evidence="the loader", share=0.9)
BUSY = Explanation(cause="step", evidence="the step", share=0.0, busy_share=0.9)


def test_what_is_published_is_collected() -> None:
    store = DictStore()
    ranks = [WatchedRanks(number, 3, store) for number in range(3)]
    ranks[0].publish(5000, STEP)
    ranks[2].publish(5016, LOADER)
    assert ranks[1].collect(5000) == {0: STEP, 2: LOADER}
    assert ranks[1].collect(9000) == {}, "those of an earlier slowdown"


def test_the_rank_with_a_cause_of_its_own_is_slow() -> None:
    assert slow_rank({0: STEP, 1: LOADER, 2: STEP, 3: STEP}, 4) == 1
    assert slow_rank({0: STEP, 1: BUSY, 2: STEP, 3: STEP}, 4) == 1, "it computes while the others sleep"


def test_negative_control_a_cause_that_all_have_is_of_no_rank() -> None:
    assert slow_rank({0: LOADER, 1: LOADER, 2: LOADER, 3: STEP}, 4) is None
    assert slow_rank({0: BUSY, 1: BUSY, 2: BUSY}, 3) is None
    assert slow_rank({0: STEP, 1: STEP}, 2) is None
    assert slow_rank({}, 2) is None


def test_a_process_alone_has_no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_ranks() is None
    store = dist.HashStore()
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: store)
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    assert find_ranks() is None
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    ranks = find_ranks()
    assert ranks is not None
    ranks.publish(100, LOADER)
    assert ranks.collect(100) == {1: LOADER}
