"""`stoker train time-moe`, `forecast`, `export` and `bench`: from CSV to a forecast, and one line where it cannot be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.calling import Done
from tests.recipes.time_moe.waves import write_csv

from stoker.recipes import time_moe

Stoker = Callable[..., Done]

QUICK = "--size tiny --length 64 --batch-size 2 --steps 4 --precision fp32 --device cpu --quiet".split()


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
    assert "weights: runs/ett/weights\nnext: stoker forecast runs/ett --data ett.stoker" in done.out
    shown = stoker("forecast", "runs/ett", "--data", "ett.stoker", "--series", "HUFL", "--horizon", "20", "--plot", "f.svg")
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.startswith("HUFL by runs/ett, step ")
    assert "actual" not in shown.out, "it begins where the series ends"
    assert "written: f.svg" in shown.out
    assert "HUFL" in (folder / "f.svg").read_text()


def test_a_forecast_for_programs_and_as_csv(stoker: Stoker, folder: Path) -> None:
    time_moe.save_weights(time_moe.TimeMoe(time_moe.SIZES["tiny"]), folder / "official")
    call = ("forecast", "official", "--data", "csv/a/ett.csv", "--series", "OT", "--at", "200", "--horizon", "9", "--device", "cpu")
    found = json.loads(stoker(*call, "--json", "--out", "f.csv").out)
    assert (found["series"], found["from"], len(found["forecast"]), len(found["actual"])) == ("OT", 200, 9, 9)
    lines = (folder / "f.csv").read_text().splitlines()
    assert lines[0] == "step,forecast,actual"
    assert [float(line.split(",")[1]) for line in lines[1:]] == found["forecast"]
    assert [line.split(",")[0] for line in lines[1:]] == [str(step) for step in range(200, 209)], "steps of the series"
    assert all(10 < value < 60 for value in found["forecast"]), "in the units of the series"
    scored = json.loads(stoker(*call[:4], "--horizon", "12", "--context", "30", "--score", "--json", "--device", "cpu").out)
    assert scored["windows"] == 4 * ((48 - 12) // 12 + 1)
    table = stoker(*call[:4], "--series", "OT", "--horizon", "12", "--context", "30", "--score", "--device", "cpu").out
    assert "4 windows, 30 -> 12" in table
    for row in ("naive: last point", "naive: season of 24", "naive: season of 168 ", "naive: season by autocorrelation"):
        assert row in table
    assert [(one["name"], one["mse"] is None) for one in scored["baselines"]] == [
        ("last point", False), ("season of 24", False), ("season of 168", True), ("season by autocorrelation", False)
    ], "a season that is longer than the context is left out"  # fmt: skip
    assert scored["baselines"][0]["mse"] == scored["naive_mse"]


def test_points_that_are_missing_or_have_not_come_do_not_count(stoker: Stoker, folder: Path) -> None:
    pytest.importorskip("matplotlib")
    time_moe.save_weights(time_moe.TimeMoe(time_moe.SIZES["tiny"]), folder / "official")
    lines = ["a,b", *(f"{'' if i > 94 else i % 7},{'' if i >= 40 else i}" for i in range(100))]
    (folder / "holes.csv").write_text("\n".join(lines) + "\n")
    call = ("forecast", "official", "--data", "holes.csv", "--device", "cpu", "--series")
    found = json.loads(stoker(*call, "a", "--at", "92", "--horizon", "16", "--json", "--out", "f.csv", "--plot", "f.svg").out)
    assert found["known"] == 3
    assert found["actual"] == [1.0, 2.0, 3.0] + [None] * 13
    apart = [one - other for one, other in zip(found["forecast"], found["actual"][:3], strict=False)]
    assert found["mse"] == pytest.approx(sum(one**2 for one in apart) / 3)
    assert (folder / "f.csv").read_text().splitlines()[-1].endswith(",")
    shown = stoker(*call, "a", "--at", "92", "--horizon", "16").out
    assert "over the 3 known points" in shown
    assert "nan" not in shown
    refused = stoker(*call, "b", "--context", "32")
    assert (refused.code, refused.out) == (2, "")
    assert "has no known point among its last 32" in refused.err


def test_sizes_weights_of_heads_and_updates_on_the_command_line(stoker: Stoker, folder: Path) -> None:
    time_moe.save_weights(time_moe.TimeMoe(time_moe.SIZES["tiny"]), folder / "sizes")
    (folder / "sizes" / "model.safetensors").unlink()
    call = ("train", "time-moe", "--data", "ett.stoker", "--model", "sizes/config.json", "--head-weights", "1,2,0.5,0")
    done = stoker(*call, "--length", "64", "--batch-size", "8", "--precision", "fp32", "--device", "cpu", "--json", "-v")
    assert done.code == 0
    assert (
        "stoker: note: 2 updates in all, which is very few: epochs is 1, 14 rows each, and an update takes 8 rows. "
        "Raise epochs, or set steps.\n"
    ) in done.err
    assert json.loads(done.out)["step"] == 2
    kept = json.loads((folder / "runs" / "ett" / "recipe.json").read_text())
    assert (kept["model"], kept["head_weights"], kept["size"]["hidden"]) == ("sizes/config.json", [1, 2, 0.5, 0], 32)


def test_what_a_tree_holds_beside_series_is_a_note(stoker: Stoker, folder: Path) -> None:
    (folder / "csv" / "x.jsonl").write_text(f"{[1, 2, 4, 2] * 8}\n[0.5, 1, 0.5, 1, 0.5]\n")
    note = "stoker: note: csv: left out 1 other file or folder (a/ett.csv). Time-MoE reads binary folders"
    done = stoker("train", "time-moe", "--data", "csv", *(word for word in QUICK if word != "--quiet"))
    assert done.code == 0
    assert done.err.startswith(note)
    shown = stoker("forecast", "runs/csv", "--data", "csv", "--series", "0", "--horizon", "3", "--device", "cpu")
    assert shown.code == 0
    assert shown.err.startswith(note)
    assert stoker("forecast", "runs/csv", "--data", "csv", "--series", "0", "--horizon", "3", "--device", "cpu", "-q").err == ""


def test_a_run_resumes_and_is_exported(stoker: Stoker, folder: Path) -> None:
    assert stoker("train", "time-moe", "--data", "ett.stoker", *QUICK, "--folder", "half", "--max-seconds", "1e-9").code == 0
    refused = stoker("train", "--resume", "half", "--lr", "1")
    assert (refused.code, refused.err) == (2, "stoker: lr cannot change when a run is resumed. Start another run.\n")
    done = stoker("train", "--resume", "half", "--max-seconds", "100", "--quiet", "--json", "--device", "cpu")
    assert (done.code, json.loads(done.out)["step"]) == (0, 4)
    (folder / "mine").mkdir()
    (folder / "mine" / "config.json").write_text("precious")
    (folder / "mine" / "notes.txt").write_text("precious")
    for name, line in (
        ("mine", "mine holds 'config.json' already."),
        ("half.onnx", "half.onnx would be a program, but a Time-MoE"),
    ):
        assert stoker("export", "half", name, "--overwrite").err.startswith(f"stoker: {line}")
    assert (folder / "mine" / "config.json").read_text() == "precious"
    assert not (folder / "half.onnx").exists()
    assert stoker("export", "half", "official").code == 0
    assert stoker("export", "half", "official").code == 2
    assert stoker("export", "half", "official", "--overwrite").code == 0
    assert time_moe.read_size(folder / "official") == time_moe.SIZES["tiny"]
    tuned = stoker("train", "time-moe", "--data", "ett.stoker", "--init", "official", *QUICK[2:], "--folder", "tuned", "--json")
    assert json.loads(tuned.out)["stopped"] == "finished"


def test_weights_of_the_users_beside_a_new_run_are_not_replaced(
    stoker: Stoker, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = folder / "run" / "weights" / "model.safetensors"
    mine.parent.mkdir(parents=True)
    mine.write_text("precious")
    call = ("train", "time-moe", "--data", "ett.stoker", *QUICK, "--folder", "run")
    refused = "stoker: run/weights holds model.safetensors already. Choose another folder, or remove it first.\n"
    assert stoker(*call) == Done(2, "", refused)
    assert [path.name for path in (folder / "run").iterdir()] == ["weights"]
    monkeypatch.setattr("stoker.recipes.time_moe.training.check_free", lambda folder: None)
    assert stoker(*call).code == 0
    assert mine.read_bytes() != b"precious", "negative control"


def test_a_training_run_that_fails_at_its_begin_is_not_in_the_way_of_the_next(
    stoker: Stoker, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = ("train", "time-moe", "--data", "ett.stoker", *QUICK, "--folder", "run")
    with monkeypatch.context() as patch:
        patch.setattr("stoker.train.trainer.Trainer._rehearse", lambda *given: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            stoker(*call)
    assert stoker(*call).code == 0


@pytest.mark.parametrize(
    ("kept", "line"),
    [
        ({}, "stopped before anything was saved. Begin again: the same command"),
        ({"recipe.json": "{}"}, "stopped before anything was saved. Begin again: stoker train --resume run"),
        ({"checkpoints/LATEST": "step-000000007"}, "stopped. The run is saved at step 7. Resume it: stoker train --resume run"),
    ],
)
def test_a_run_that_is_stopped_says_what_was_saved(
    stoker: Stoker, folder: Path, monkeypatch: pytest.MonkeyPatch, kept: dict[str, str], line: str
) -> None:
    def stop(data: str, **options: object) -> None:
        for name, text in kept.items():
            (folder / "run" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "run" / name).write_text(text)
        raise KeyboardInterrupt

    monkeypatch.setattr("stoker.recipes.time_moe.training.train", stop)
    call = ("train", "time-moe", "--data", "ett.stoker", *QUICK, "--folder", "run")
    assert stoker(*call) == Done(130, "", f"stoker: {line}\n")
    monkeypatch.setattr("stoker.train.checkpoint.saved_step", lambda folder: 0)
    assert "The run is saved at step 0" in stoker(*call).err, "negative control: whatever is there"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("train time-moe", "Give --data DATA, or --resume FOLDER."),
        ("train time-moe --data gone.stoker", "stoker: gone.stoker does not exist. Pass a store, a Time-MoE folder, or a file"),
        ("train time-moe --data csv", "stoker: csv is neither a store nor a tree of Time-MoE data"),
        ("train time-moe --data ett.stoker --size 51m", "stoker: --size is '51m'; expected one of 50m, 200m, tiny."),
        ("train time-moe --data ett.stoker --size tiny", "stoker: length is 2,048, but the model has 512 positions"),
        ("train time-moe --data ett.stoker --init gone", "stoker: gone does not exist. Pass the folder of a checkpoint"),
        ("train time-moe --data ett.stoker --columns x", "stoker: ett.stoker has no column of numbers 'x'; it has value."),
        ("train --resume csv --data x", "No such option"),
        ("forecast gone --data ett.stoker --series OT", "stoker: gone is neither a run of Time-MoE (recipe.json) nor a checkpoint"),
        ("forecast gone --data ett.stoker", "stoker: ett.stoker has 4 series: HUFL"),
        ("forecast gone --data ett.stoker --series XY", "stoker: ett.stoker has no series 'XY'; it has HUFL"),
        ("forecast gone --data ett.stoker --series OT --horizon 0", "--horizon is 0; expected an integer from 1."),
        ("forecast gone --data ett.stoker --series OT --plot f.gif", "stoker: f.gif has the suffix '.gif'; expected .svg or .png."),
        ("forecast gone --data ett.stoker --series OT --plot no/f.svg", "stoker: no/f.svg cannot be written: there is no folder"),
        ("forecast gone --data ett.stoker --series OT --out no/f.csv", "stoker: no/f.csv cannot be written: there is no folder"),
        ("forecast gone --data ett.stoker --series OT --device banana", "stoker: --device is 'banana'; expected 'cpu', 'cuda' or"),
        ("train time-moe --data ett.stoker --device banana", "stoker: --device is 'banana'; expected 'cpu', 'cuda' or 'cuda:N'"),
        ("forecast gone --data ett.stoker --score --out f.csv", "--score is over many forecasts"),
        ("train time-moe --data ett.stoker --head-weights 1,x", "--head-weights is '1,x'; expected numbers separated by commas"),
        ("train time-moe --data ett.stoker --head-weights 1,2", "stoker: head_weights has 2 numbers; expected 4"),
        ("train time-moe --data ett.stoker --model gone", "stoker: gone/config.json is missing."),
        ("train time-moe --data x.pkl", "stoker: x.pkl is a pickle, which can run code and is never read."),
    ],
)
def test_an_invalid_option_is_one_line(stoker: Stoker, folder: Path, arguments: str, line: str) -> None:
    (folder / "x.pkl").write_bytes(b"")
    done = stoker(*arguments.split())
    assert (done.code, done.out) == (2, "")
    assert line in done.err
    assert "Traceback" not in done.err
