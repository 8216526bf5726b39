"""Stages of making a batch: each call counts for the outermost stage that it is in."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stoker.diagnose import profilers
from stoker.diagnose import profilers as module
from stoker.diagnose.profilers import Stages


def test_the_outermost_stage_has_all_the_time_within(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(0, 10_000, 10))
    monkeypatch.setattr(module, "now_ns", lambda: next(ticks))
    stages = Stages()

    def collate(samples: Any) -> Any:
        return [json.loads(one) for one in samples]

    with stages:
        profilers.collated(collate, ["1", "2"])
    shares = stages.shares()
    assert shares["decode"] == 0
    assert shares["collate"] > 0
