"""Freed memory is kept once it is asked for."""

from __future__ import annotations

import pytest

from stoker.diagnose.experiments.memory import Malloc


@pytest.mark.parametrize("can_keep", [True, False])
def test_memory_is_kept_where_the_allocator_can(can_keep: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.diagnose.experiments.memory.keep_memory", lambda: can_keep)
    fix = Malloc()
    fix.install()
    assert fix.used == can_keep
