"""The command line, called in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.calling import Done


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    """Two small files."""
    folder = tmp_path / "prices"
    folder.mkdir()
    (folder / "a.csv").write_text("symbol,ts,close\nMSFT,2020-01-01,1.5\nAAPL,2020-01-01,inf\nMSFT,2020-01-02,\n")
    (folder / "b.csv").write_text("symbol,ts,close\nAAPL,2020-01-02,3.5\n")
    return folder


@pytest.fixture
def packed_prices(stoker: Callable[..., Done], prices: Path, tmp_path: Path) -> Path:
    """The store of the files above."""
    assert stoker("pack", prices, tmp_path / "out", "--series", "symbol", "--time", "ts").code == 0
    return tmp_path / "out"


@pytest.fixture
def day(tmp_path: Path) -> Path:
    """A file with the rows of one more day."""
    (tmp_path / "day.csv").write_text("symbol,ts,close\nMSFT,2020-01-05,7\nNVDA,2020-01-05,8\n")
    return tmp_path / "day.csv"
