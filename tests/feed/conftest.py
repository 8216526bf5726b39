"""What the tests of feeds share."""

from __future__ import annotations

import pytest

from stoker.feed.gather import Ring


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots are filled with 0xCB whenever they are taken: what is used too early or was never written shows."""
    monkeypatch.setitem(Ring.__init__.__kwdefaults__, "poison", True)  # type: ignore[index]
