"""The batch size of a run is chosen by its own steps; on the command line too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stoker.cli.main import main


def test_the_command_measures_sizes_up_to_the_largest(ice: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["tune", "batch", "icecube", "--data", str(ice), "--set", "size=tiny", "--largest", "2", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["size"] in (1, 2)
    assert {one["size"] for one in found["curve"]} <= {1, 2}
    assert found["samples_per_second"] > 0
