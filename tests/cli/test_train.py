"""`stoker train`: a configuration becomes a run, a run goes on, and what cannot be meant is one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.calling import Done
from tests.cli.training_folder import make_folder

from stoker.experiment import load
from stoker.train.checkpoint import Checkpoint, CheckpointFolder
from stoker.train.fit import methods_of
from stoker.train.trainer import Trainer

Stoker = Callable[..., Done]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return make_folder(tmp_path)


def latest(run: Path) -> Checkpoint:
    with CheckpointFolder(run / "checkpoints") as checkpoints:
        found = checkpoints.latest()
    assert found is not None
    return found


def test_a_run_is_trained_and_reported(stoker: Stoker, folder: Path) -> None:
    done = stoker("train", "c.yaml")
    assert (done.code, done.began) == (0, "stoker: training c.yaml …")
    assert "feed of waves.stoker: Windows(8, stride=4, horizon=2)\n" in done.out
    assert "finished: 2 epochs, 12 steps, " in done.out
    assert "val_mae" in done.out
    assert done.out.endswith("run: runs/c   next: stoker predict runs/c --data NEW\n")
    run = folder / "runs" / "c"
    assert {"config.yaml", "run.json", "metrics.jsonl", "checkpoints"} <= {path.name for path in run.iterdir()}
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["step"] == 12
    assert lines[-1]["val_loss"] > 0


def test_the_effective_configuration_is_kept(stoker: Stoker, folder: Path) -> None:
    assert stoker("train", "c.yaml", "--quiet", "--set", "batch_size=64", "--set", "folder=here").code == 0
    kept = load(folder / "here" / "config.yaml")
    assert kept == load(folder / "c.yaml", overrides=["batch_size=64", "folder=here"])
    config = json.loads((folder / "here" / "run.json").read_text())["sessions"][0]["config"]
    assert config["data"]["batch_size"] == 64
    assert config["optimizer"]["lr"] == 0.01


def test_a_run_that_continues_ends_like_one_that_was_never_stopped(stoker: Stoker, folder: Path) -> None:
    import torch

    assert stoker("train", "c.yaml", "--quiet", "--set", "epochs=3", "--set", "folder=whole").code == 0
    # Stopped after its first epoch by a budget that no epoch is short enough for.
    stopped = stoker("train", "c.yaml", "--quiet", "--set", "epochs=3", "--set", "folder=half", "--set", "max_seconds=1e-9")
    assert "stopped by max_seconds: " in stopped.out
    assert latest(folder / "half").step < 18
    refused = stoker("train", "--resume", "half", "--quiet", "--set", "max_seconds=null")
    assert refused.code == 2
    assert refused.err == (
        "stoker: half is of another run: train.max_seconds: 1e-09 saved, None now. "
        "Make them equal, or allow each by name (train.max_seconds).\n"
    )
    done = stoker("train", "--resume", "half", "--quiet", "--set", "max_seconds=null", "--allow", "max_seconds")
    assert (done.code, done.err) == (0, "")
    whole, half = latest(folder / "whole"), latest(folder / "half")
    assert whole.step == half.step == 18
    for name, tensor in whole.parts["model"].items():
        assert torch.equal(tensor, half.parts["model"][name]), name


def test_a_learning_rate_may_change_if_that_is_allowed(stoker: Stoker, folder: Path) -> None:
    assert stoker("train", "c.yaml", "--quiet", "--set", "epochs=1").code == 0
    changes = ("--set", "lr=5e-3", "--set", "epochs=2")
    assert stoker("train", "--resume", "runs/c", "--quiet", *changes, "--allow", "epochs").code == 2
    done = stoker("train", "--resume", "runs/c", "--quiet", *changes, "--allow", "epochs", "--allow", "lr")
    assert (done.code, done.err) == (0, "")
    assert latest(folder / "runs" / "c").step == 12


@pytest.mark.parametrize(
    "sets",
    [
        ("model=gru", "model.width=8"),
        (
            "model={name: transformer, width: 8, heads: 2, layers: 1}",
            "ema=0.9",
            "max_grad_norm=1",
            "grad_accum_steps=2",
            "schedule=cosine",
        ),
        ("model=mlp", "data.view={name: segments, length: 8, shift: 1}", "loss=huber", "optimizer=sgd", "lr=1e-3"),
        ("target=[up]", "columns=[close]", "data.view={name: windows, length: 8}", "loss=bce", "metrics=[auc, accuracy]"),
        (
            "target=[kind]",
            "data.view={name: sequences, max_length: 300}",
            "split=null",
            "metrics=[]",
            "loss.name=cross_entropy",
            "classes=2",
        ),
        ("loss={name: quantile, quantiles: [0.1, 0.9]}", "metrics=[]", "early_stopping.patience=1"),
        ("model=own.py:make", "loss=own.py:slow", "columns=[close]", "target=[close]", "metrics=[]", "scale=false"),
        ("split=null", "normalize=zero", "order=sequential", "metrics=[]"),
        ("split={name: grouped, valid: 0.5}", "seed=1", "data.order=block"),
    ],
    ids=lambda sets: sets[0][:30],
)
def test_every_kind_of_training_runs(stoker: Stoker, folder: Path, sets: tuple[str, ...]) -> None:
    arguments = [part for one in sets for part in ("--set", one)]
    done = stoker("train", "c.yaml", "--quiet", "--set", "epochs=1", *arguments)
    assert (done.code, done.err) == (0, "")
    assert "finished" in done.out


def test_values_of_the_whole_series_would_leak_through_a_split(stoker: Stoker, folder: Path) -> None:
    done = stoker("train", "c.yaml", "--quiet", "--set", "normalize=zero")
    assert done.code == 2
    assert "normalize" in done.err


def test_a_folder_with_a_run_is_not_used_again(stoker: Stoker, folder: Path) -> None:
    assert stoker("train", "c.yaml", "--quiet", "--set", "epochs=1").code == 0
    done = stoker("train", "c.yaml", "--quiet")
    line = (
        "stoker: runs/c has a run already. Resume it (--resume), replace it (--overwrite), or choose another folder "
        "(train.folder).\n"
    )
    assert done == Done(2, "", line)
    assert stoker("train", "c.yaml", "--quiet", "--overwrite").code == 0
    assert latest(folder / "runs" / "c").step == 12


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", "--set train.folder has no value"),
        ("c.yaml", "--set folder is c.yaml, which is not a folder."),
        ("c.yaml/run", "c.yaml/run cannot be in "),
        ("loop", "loop is a link that leads back to itself."),
        ("etc", "etc/"),
        ("/", "/"),
        ("waves.stoker", "waves.stoker/"),
        ("y" * 300, "the path 'yyy"),
        ("3", "--set: train.folder is 3; expected a string or null."),
        ("[a", "--set train.folder is not YAML: "),
        ("a\tb", "--set train.folder is not YAML: "),
    ],
)
def test_a_wrong_folder_is_one_line_that_names_it(stoker: Stoker, folder: Path, value: str, message: str) -> None:
    (folder / "loop").symlink_to("loop")
    (folder / "etc").symlink_to("/etc")
    before = sorted(folder.rglob("*"))
    done = stoker("train", "c.yaml", "--quiet", "--set", f"train.folder={value}")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert done.err.startswith(f"stoker: {message}")
    assert sorted(folder.rglob("*")) == before


@pytest.mark.promise("P13")
def test_a_folder_of_the_users_is_not_written_into(stoker: Stoker, folder: Path) -> None:
    """Neither their checkpoints nor a configuration of theirs."""
    (folder / "runs" / "c" / "checkpoints").mkdir(parents=True)
    (folder / "runs" / "c" / "checkpoints" / "mine.pt").write_text("mine")
    done = stoker("train", "c.yaml", "--quiet", "--overwrite")
    assert done.err == (
        "stoker: runs/c/checkpoints is there, but no run.json says that it is of a run of stoker. Give a new folder, one with logs "
        "and notes alone, or that of a run.\n"
    )
    assert not (folder / "runs" / "c" / "config.yaml").exists()
    (folder / "other").mkdir()
    (folder / "other" / "config.yaml").write_text((folder / "c.yaml").read_text() + "# a comment of mine\n")
    done = stoker("train", "other/config.yaml", "--quiet", "--set", "folder=other", "--overwrite")
    assert done.code == 2
    assert done.err.startswith("stoker: other/config.yaml is there, but no run.json says")
    assert "of mine" in (folder / "other" / "config.yaml").read_text()


@pytest.mark.promise("P13", control=True)
def test_negative_control_without_the_check_a_folder_of_the_users_is_written_into(
    stoker: Stoker, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "runs" / "c" / "checkpoints").mkdir(parents=True)
    (folder / "runs" / "c" / "checkpoints" / "mine.pt").write_text("mine")
    monkeypatch.setattr("stoker.train.run.check_new", lambda folder: None)
    monkeypatch.setattr("stoker.train.trainer.check_new", lambda folder: None)
    assert stoker("train", "c.yaml", "--quiet").code == 0
    assert (folder / "runs" / "c" / "checkpoints" / "LATEST").exists()


WRONG = ("--set", "model=own.py:make")  # which predicts one column of two: known with the first batch


@pytest.mark.promise("P13")
def test_a_training_run_that_fails_at_its_begin_is_not_in_the_way_of_the_next(stoker: Stoker, folder: Path) -> None:
    assert stoker("train", "c.yaml", "--quiet", *WRONG).err.startswith("stoker: the model gives (32, 2, 1)")
    assert list((folder / "runs" / "c").iterdir()) == []
    assert stoker("train", "c.yaml", "--quiet").code == 0


@pytest.mark.promise("P13")
@pytest.mark.parametrize(
    "call",
    [
        ("train", "c.yaml", "--overwrite", *WRONG),
        ("train", "--resume", "runs/c", "--set", "model=mlp", "--allow", "model"),
    ],
    ids=["overwrite", "resume"],
)
def test_a_run_stays_as_it_was_where_what_should_replace_or_continue_it_fails(
    stoker: Stoker, folder: Path, call: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stoker("train", "c.yaml", "--quiet").code == 0
    run = folder / "runs" / "c"
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert stoker(*call, "--quiet").code == 2
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    assert stoker("train", "--resume", "runs/c", "--quiet").code == 0
    fit = Trainer.fit

    def keep_first(trainer: Trainer, *given: Any, **options: Any) -> Any:
        for on_open in methods_of(trainer.callbacks, "on_open"):
            on_open()
        return fit(trainer, *given, **options)

    monkeypatch.setattr(Trainer, "fit", keep_first)
    assert stoker(*call, "--quiet").code == 2
    assert (run / "config.yaml").read_bytes() != before[run / "config.yaml"], "negative control: kept at once, as before"


@pytest.mark.promise("P13")
@pytest.mark.parametrize(
    ("kept", "line"),
    [
        ({}, "stopped before anything was saved. Begin again: the same command"),
        ({"config.yaml": "{}"}, "stopped before anything was saved. Begin again: stoker train --resume run"),
        ({"config.yaml": "{}", "checkpoints/step-000000007/x": ""}, "stopped before anything was saved. Begin again: stoker train"),
        ({"checkpoints/LATEST": "step-000000007"}, "stopped. The run is saved at step 7. Resume it: stoker train --resume run"),
    ],
)
def test_a_run_that_is_stopped_says_what_was_saved(
    stoker: Stoker, folder: Path, monkeypatch: pytest.MonkeyPatch, kept: dict[str, str], line: str
) -> None:
    def stop(*given: object, **options: object) -> None:
        for name, text in kept.items():
            (folder / "run" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "run" / name).write_text(text)
        raise KeyboardInterrupt

    monkeypatch.setattr("stoker.experiment.run", stop)
    done = stoker("train", "c.yaml", "--quiet", "--set", "folder=run")
    assert (done.code, done.out) == (130, "")
    assert done.err.startswith(f"stoker: {line}")
    monkeypatch.setattr("stoker.train.checkpoint.saved_step", lambda folder: 0)
    done = stoker("train", "c.yaml", "--quiet", "--set", "folder=run")
    assert "The run is saved at step 0" in done.err, "negative control: whatever is there"


def test_the_fields_are_shown(stoker: Stoker) -> None:
    done = stoker("train", "--fields")
    assert done.code == 0
    assert "batch_size: …" in done.out
    assert "# Samples per batch and process." in done.out


def setup_of(run: Path) -> Any:
    return json.loads((run / "run.json").read_text())["sessions"][-1]["config"]["setup"]


def test_a_setup_is_asked_for_and_recorded(stoker: Stoker, folder: Path) -> None:
    plain = {"precision": "fp32", "fused": False, "graph": False, "compile": False}
    assert stoker("train", "c.yaml", "--quiet", "--set", "folder=plain").code == 0
    assert setup_of(folder / "plain") == plain
    assert stoker("train", "c.yaml", "--quiet", "--set", "folder=fused", "--set", "fused=true").code == 0
    assert setup_of(folder / "fused") == {**plain, "fused": True}


def test_a_resumed_run_keeps_its_setup_unless_another_is_allowed(stoker: Stoker, folder: Path) -> None:
    assert stoker("train", "c.yaml", "--quiet", "--set", "fused=true").code == 0
    more = ("--set", "epochs=3", "--allow", "epochs")
    refused = stoker("train", "--resume", "runs/c", "--quiet", "--set", "precision=bf16", *more)
    assert refused.code == 2
    assert "train.precision: 'fp32' saved, 'bf16' now" in refused.err
    assert stoker("train", "--resume", "runs/c", "--quiet", *more).code == 0
    assert setup_of(folder / "runs" / "c")["fused"] is True
    changed = ("--set", "precision=bf16", "--allow", "precision", "--set", "epochs=4", "--allow", "epochs")
    assert stoker("train", "--resume", "runs/c", "--quiet", *changed).code == 0
    assert setup_of(folder / "runs" / "c") == {"precision": "bf16", "fused": True, "graph": False, "compile": False}
