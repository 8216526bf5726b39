"""`stoker train time-moe`, `stoker time-moe forecast` and `stoker export`: from CSV to a forecast, and one line where it cannot be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.calling import Done
from tests.recipes.time_moe.waves import write_csv

from stoker_recipes import time_moe

Stoker = Callable[..., Done]

SETTINGS = {"size": "tiny", "length": 64, "batch_size": 2, "steps": 4, "precision": "fp32"}
QUICK = [*(f"--set={name}={value}" for name, value in SETTINGS.items()), "--device", "cpu", "--quiet"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stoker: Stoker) -> Path:
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "csv" / "a" / "ett.csv", 240)
    assert stoker("pack", "csv/**/*.csv", "ett.stoker", "--wide", "--quiet").code == 0
    return tmp_path


def test_from_csv_to_a_forecast(stoker: Stoker, folder: Path) -> None:
    pytest.importorskip("matplotlib")
    done = stoker("train", "time-moe", "--data", "ett.stoker", *QUICK)
    assert (done.code, done.err) == (0, "")
    assert "finished: 4 steps over " in done.out
    assert "weights: runs/ett/weights\nnext: stoker time-moe forecast runs/ett --data ett.stoker" in done.out
    shown = stoker(
        "time-moe", "forecast", "runs/ett", "--data", "ett.stoker", "--series", "HUFL", "--horizon", "20", "--plot", "f.svg"
    )
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.startswith("HUFL by runs/ett, step ")
    assert "actual" not in shown.out, "it begins where the series ends"
    assert "written: f.svg" in shown.out
    assert "HUFL" in (folder / "f.svg").read_text()


def test_a_forecast_for_programs(stoker: Stoker, folder: Path) -> None:
    time_moe.save_weights(time_moe.TimeMoe(time_moe.SIZES["tiny"]), folder / "official")
    call = "time-moe forecast official --data csv/a/ett.csv --series OT --at 200 --horizon 9 --device cpu".split()
    found = json.loads(stoker(*call, "--json").out)
    assert (found["series"], found["from"], len(found["forecast"]), len(found["actual"])) == ("OT", 200, 9, 9)
    assert all(10 < value < 60 for value in found["forecast"]), "in the units of the series"
    scored = json.loads(stoker(*call[:5], "--horizon", "12", "--context", "30", "--score", "--json", "--device", "cpu").out)
    assert scored["windows"] == 4 * ((48 - 12) // 12 + 1)
    table = stoker(*call[:5], "--series", "OT", "--horizon", "12", "--context", "30", "--score", "--device", "cpu").out
    assert "4 windows, 30 -> 12" in table
    for row in ("naive: last point", "naive: season of 24", "naive: season of 168 ", "naive: season by autocorrelation"):
        assert row in table
    assert [(one["name"], one["mse"] is None) for one in scored["baselines"]] == [
        ("last point", False), ("season of 24", False), ("season of 168", True), ("season by autocorrelation", False)
    ], "a season that is longer than the context is left out"  # fmt: skip


def test_points_that_are_missing_or_have_not_come_do_not_count(stoker: Stoker, folder: Path) -> None:
    pytest.importorskip("matplotlib")
    time_moe.save_weights(time_moe.TimeMoe(time_moe.SIZES["tiny"]), folder / "official")
    lines = ["a,b", *(f"{'' if i > 94 else i % 7},{'' if i >= 40 else i}" for i in range(100))]
    (folder / "holes.csv").write_text("\n".join(lines) + "\n")
    call = ("time-moe", "forecast", "official", "--data", "holes.csv", "--device", "cpu", "--series")
    found = json.loads(stoker(*call, "a", "--at", "92", "--horizon", "16", "--json", "--plot", "f.svg").out)
    assert found["known"] == 3
    assert found["actual"] == [1.0, 2.0, 3.0] + [None] * 13
    apart = [one - other for one, other in zip(found["forecast"], found["actual"][:3], strict=False)]
    assert found["mse"] == pytest.approx(sum(one**2 for one in apart) / 3)
    shown = stoker(*call, "a", "--at", "92", "--horizon", "16").out
    assert "over the 3 known points" in shown
    assert "nan" not in shown
    refused = stoker(*call, "b", "--context", "32")
    assert (refused.code, refused.out) == (2, "")
    assert "has no known point among its last 32" in refused.err


def test_a_run_resumes_and_is_exported(stoker: Stoker, folder: Path) -> None:
    assert stoker("train", "time-moe", "--data", "ett.stoker", *QUICK, "--folder", "half", "--set", "max_seconds=1e-9").code == 0
    refused = stoker("train", "--resume", "half", "--set", "lr=1")
    assert (refused.code, refused.err) == (2, "stoker: --set lr cannot change when a run is resumed. Start another run.\n")
    done = stoker("train", "--resume", "half", "--set", "max_seconds=100", "--quiet", "--json", "--device", "cpu")
    assert (done.code, json.loads(done.out)["step"]) == (0, 4)
    (folder / "mine").mkdir()
    (folder / "mine" / "config.json").write_text("precious")
    (folder / "mine" / "notes.txt").write_text("precious")
    for name, line in (
        ("mine", "mine holds 'config.json' already."),
        ("half.onnx", "half.onnx would be a file, but a Time-MoE"),
    ):
        assert stoker("export", "half", name, "--overwrite").err.startswith(f"stoker: {line}")
    assert (folder / "mine" / "config.json").read_text() == "precious"
    assert not (folder / "half.onnx").exists()
    assert stoker("export", "half", "official").code == 0
    assert stoker("export", "half", "official").code == 2
    assert stoker("export", "half", "official", "--overwrite").code == 0
    assert time_moe.read_size(folder / "official") == time_moe.SIZES["tiny"]
    tuned = stoker("train", "time-moe", "--data", "ett.stoker", "--set", "init=official", *QUICK[1:], "--folder", "tuned", "--json")
    assert json.loads(tuned.out)["stopped"] == "finished"


@pytest.mark.promise("P24")
def test_weights_of_the_users_beside_a_new_run_are_not_replaced(
    stoker: Stoker, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = folder / "run" / "weights" / "model.safetensors"
    mine.parent.mkdir(parents=True)
    mine.write_text("precious")
    call = ("train", "time-moe", "--data", "ett.stoker", *QUICK, "--folder", "run")
    done = stoker(*call)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert done.err.startswith("stoker: run/weights holds model.safetensors already.")
    assert [path.name for path in (folder / "run").iterdir()] == ["weights"]
    monkeypatch.setattr("stoker._disk.claim_folder", lambda *given, **options: None)
    monkeypatch.setattr("stoker_recipes.time_moe.training.check_free", lambda folder: None)
    assert stoker(*call).code == 0
    assert mine.read_bytes() != b"precious", "negative control"
