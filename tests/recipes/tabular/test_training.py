"""Runs: they learn, stop, resume to the same weights, and refuse what is not theirs."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.harness.faulty import FaultyFiles
from tests.recipes.tabular.frames import make_events, make_users

from stoker.errors import ConfigError, OptionError, StokerError
from stoker_recipes.tabular import batches as batches_module
from stoker_recipes.tabular import load_model, train
from stoker_recipes.tabular import training as training_module
from stoker_recipes.tabular.training import resume

SMALL: dict[str, Any] = {"size": "s", "epochs": 3, "device": "cpu"}


def losses_of(folder: Path) -> list[float]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line["val_loss"] for line in lines if "val_loss" in line]


def test_a_run_learns_and_is_opened_again(tmp_path: Path) -> None:
    said: list[str] = []
    done = train(
        make_events(60),
        key="user",
        context=make_users(60),
        folder=tmp_path / "run",
        say=lambda *line: said.append(" ".join(line)),
        **SMALL,
    )
    losses = losses_of(tmp_path / "run")
    assert losses[-1] < losses[0]
    assert any("60 with" in line for line in said)
    again = load_model(tmp_path / "run", device="cpu")
    assert again.spec == done.spec
    assert again.context is not None
    for name, weight in done.model.upstream_weights().items():
        assert (again.model.upstream_weights()[name] == weight).all()
    assert any("weight_context" in name for name in done.model.upstream_weights())


@pytest.mark.promise("P30")
@pytest.mark.parametrize("after", [5, 12])
def test_a_killed_run_resumes_to_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    events = tmp_path / "events.parquet"
    make_events(60).to_parquet(events)
    options: dict[str, Any] = {**SMALL, "max_grad_norm": 1.0}
    train(events, key="user", folder=tmp_path / "whole", **options)
    original = batches_module.SubjectBatches.__iter__
    given = [0]

    def killed(self: Any) -> Any:
        for batch in original(self):
            if not self._is_fixed:
                given[0] += 1
                if given[0] == after:
                    raise KeyboardInterrupt
            yield batch

    monkeypatch.setattr(batches_module.SubjectBatches, "__iter__", killed)
    with pytest.raises(KeyboardInterrupt):
        train(events, key="user", folder=tmp_path / "parts", **options)
    monkeypatch.undo()
    assert not (tmp_path / "parts" / "model.safetensors").exists()
    with pytest.raises(OptionError, match=r"its training has not finished. Resume it: stoker train --resume"):
        load_model(tmp_path / "parts")
    resume(tmp_path / "parts", device="cpu")
    assert (tmp_path / "parts" / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()
    assert losses_of(tmp_path / "parts") == losses_of(tmp_path / "whole")


@pytest.mark.promise("P30")
def test_a_run_killed_after_its_last_epoch_resumes_to_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = tmp_path / "events.parquet"
    make_events(60).to_parquet(events)
    options: dict[str, Any] = {**SMALL, "patience": 1, "epochs": 12, "lr": 0.05}
    whole = train(events, key="user", folder=tmp_path / "whole", **options)

    def killed(*given: Any, **options: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(training_module.refinement, "refine_heads", killed)
    with pytest.raises(KeyboardInterrupt):
        train(events, key="user", folder=tmp_path / "parts", **options)
    monkeypatch.undo()
    assert not (tmp_path / "parts" / "model.safetensors").exists()
    again = resume(tmp_path / "parts", device="cpu")
    assert again.result is not None
    assert whole.result is not None
    assert again.result.stopped == whole.result.stopped
    assert (tmp_path / "parts" / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()


def test_training_stops_early_and_keeps_the_best_weights(tmp_path: Path) -> None:
    done = train(make_events(40), key="user", folder=tmp_path, **{**SMALL, "epochs": 50, "patience": 1, "lr": 0.3})
    assert done.result is not None
    assert done.result.stopped == "early"
    losses = losses_of(tmp_path)
    assert done.result.best == min(losses) < losses[-1]


def test_training_stops_by_its_time_limit(tmp_path: Path) -> None:
    done = train(make_events(40), key="user", folder=tmp_path, **{**SMALL, "epochs": 1000, "patience": 1000, "max_seconds": 0.5})
    assert done.result is not None
    assert done.result.stopped == "budget"
    assert (tmp_path / "model.safetensors").is_file()


def test_a_run_with_other_settings_is_not_resumed(tmp_path: Path) -> None:
    events = make_events(40)
    train(events, key="user", folder=tmp_path, **SMALL)
    with pytest.raises(OptionError, match="is a run with other data or settings"):
        train(events, key="user", folder=tmp_path, resume=True, **{**SMALL, "epochs": 4})
    with pytest.raises(OptionError, match="has a run already"):
        train(events, key="user", folder=tmp_path, **SMALL)
    with pytest.raises(OptionError, match="was trained on a frame, not on a file"):
        resume(tmp_path)
    train(events, key="user", folder=tmp_path, overwrite=True, **{**SMALL, "epochs": 1})


def test_a_damaged_run_is_named(tmp_path: Path) -> None:
    train(make_events(40), key="user", folder=tmp_path, **{**SMALL, "epochs": 1})
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(ConfigError, match="is damaged"):
        load_model(tmp_path)
    (tmp_path / "recipe.json").write_text("{")
    with pytest.raises(ConfigError, match=r"recipe\.json is damaged"):
        load_model(tmp_path)
    (tmp_path / "recipe.json").write_text('{"recipe": "tfa"}')
    with pytest.raises(OptionError, match="is a run of the recipe 'tfa'"):
        load_model(tmp_path)


@pytest.mark.promise("P30", control=True)
def test_events_shuffled_inside_subjects_are_learned_worse(tmp_path: Path) -> None:
    """A negative control: the order of events matters to the loss."""
    events = make_events(300)[["user", "state"]]
    settings = {**SMALL, "epochs": 8, "lr": 0.01}
    ordered = train(events, key="user", folder=tmp_path / "a", **settings).result
    mixed = events.sample(frac=1, random_state=np.random.RandomState(0)).sort_values("user", kind="stable")
    shuffled = train(mixed, key="user", folder=tmp_path / "b", **settings).result
    assert ordered is not None
    assert shuffled is not None
    assert ordered.best is not None
    assert shuffled.best is not None
    assert ordered.best < shuffled.best - 0.03


@pytest.mark.filterwarnings("ignore:the checkpoint of step")
def test_a_full_disk_leaves_no_model_or_the_whole_one(tmp_path: Path) -> None:
    """At every eleventh disk operation; one line says so, and the run can be replaced."""
    options: dict[str, Any] = {"key": "user", "size": "s", "epochs": 1, "device": "cpu"}
    with FaultyFiles() as counted:
        train(make_events(30), folder=tmp_path / "good", **options)
    good = (tmp_path / "good" / "model.safetensors").read_bytes()
    said: dict[str, str] = {}
    for operation in range(1, counted.operations, 11):
        folder = tmp_path / f"run-{operation}"
        try:
            with FaultyFiles(error_at=(operation, errno.ENOSPC)):
                train(make_events(30), folder=folder, **options)
        except StokerError as error:
            said[type(error).__name__] = str(error)
        if (folder / "model.safetensors").exists():
            assert (folder / "model.safetensors").read_bytes() == good
    assert set(said) == {"DiskFullError", "CheckpointError"}
    assert all("Free some space" in line and "\n" not in line for line in said.values())
    train(make_events(30), folder=tmp_path / "run-34", overwrite=True, **options)
    assert (tmp_path / "run-34" / "model.safetensors").read_bytes() == good
