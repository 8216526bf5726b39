"""`make compare`: both ways are measured in turn, shown as a table or a record, and nothing is left behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.compare import command
from click.testing import CliRunner

from stoker.errors import OptionError


@pytest.mark.slow
def test_time_moe_is_measured_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    arguments = ["time-moe", "--length", "48", "--batch-size", "2", "--rounds", "1", "--out", "bench.svg"]
    done = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    assert "Time-MoE, before and after" in done.output
    assert done.output.count("equal bit for bit") == 2
    assert "NOT equal" not in done.output
    record = json.loads(Path("bench.json").read_text())
    assert len(record["lines"]) == 4
    assert all(len(line["before"]) == len(line["after"]) == 1 for line in record["lines"])
    assert "<svg" in Path("bench.svg").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bench.json", "bench.svg"]


@pytest.mark.parametrize("as_json", [False, True])
def test_tfa_is_shown_as_a_table_or_a_record(tmp_path: Path, as_json: bool) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "bench.svg"
    arguments = ["tfa", "--rounds", "1", "--batch-size", "8", "--out", str(out), *(["--json"] if as_json else [])]
    done = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    assert json.loads(out.with_suffix(".json").read_text())["bench"] == "tfa"
    assert "<svg" in out.read_text()
    assert json.loads(done.stdout)["plan"]["batch"] == 8 if as_json else "labels/s" in done.stdout


@pytest.mark.parametrize(("option", "line"), [(["--size", "51m"], "--size is '51m'"), (["--length", "5000"], "positions")])
def test_invalid_options_are_one_line(option: list[str], line: str) -> None:
    with pytest.raises(OptionError, match=line):
        CliRunner().invoke(command, ["time-moe", *option], catch_exceptions=False)
