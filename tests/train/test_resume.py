"""Exact resume: a run that ends anywhere and goes on is, bit for bit, one that never ended."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.runs import Crash, log_of, train
from tests.train.training import adamw, network, pairs, same_weights, trainer_of
from torch import nn

from stoker._disk import Lock
from stoker.errors import CheckpointError, CheckpointInvalidError, FeedError, OptionError, TrainError
from stoker.train import Result
from stoker.train import fit as fit_module
from stoker.train.run import read_record

State = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, State, list[dict[str, Any]], int]:
    """The run that is never stopped, its log, and how many batches it takes."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    result, state = train(folder)
    return result, state, log_of(folder), result.step * 2


def assert_same(state: State, expected: State) -> None:
    for name, tensor in expected.items():
        assert torch.equal(state[name], tensor), name


@pytest.mark.promise("P13")
@pytest.mark.parametrize(("save_every", "every"), [(1, 7), (3, 5), (None, 7), pytest.param(3, 1, marks=pytest.mark.slow)])
def test_a_run_that_crashes_in_any_batch_ends_as_if_it_had_not(
    whole: tuple[Result, State, list[dict[str, Any]], int], save_every: int | None, every: int, tmp_path: Path
) -> None:
    result, state, log, num_batches = whole
    for crash_at in range(0, num_batches, every):
        folder = tmp_path / str(crash_at)
        try:
            train(folder, crash_at=crash_at, save_every=save_every)
        except Crash:
            again, found = train(folder, resume=True, save_every=save_every)
            assert again.step == result.step
            assert_same(found, state)
            kept = (
                [{k: v for k, v in line.items() if k not in ("loss", "norm")} for line in log_of(folder)] if save_every == 3 else []
            )
            assert not kept or kept == [{k: v for k, v in line.items() if k not in ("loss", "norm")} for line in log]


@pytest.mark.promise("P13")
def test_the_log_of_a_resumed_run_is_that_of_one_that_never_ended(
    whole: tuple[Result, State, list[dict[str, Any]], int], tmp_path: Path
) -> None:
    with pytest.raises(Crash):
        train(tmp_path / "run", crash_at=17)
    train(tmp_path / "run", resume=True)
    assert log_of(tmp_path / "run") == whole[2]


def test_a_run_that_is_done_stays_as_it_is(whole: tuple[Result, State, list[dict[str, Any]], int], tmp_path: Path) -> None:
    train(tmp_path / "run")
    result, state = train(tmp_path / "run", resume=True)
    assert result.step == whole[0].step
    assert_same(state, whole[1])


def test_a_run_can_be_made_longer(tmp_path: Path) -> None:
    """Without a schedule that looks at the end, two epochs and then two more are four."""
    train(tmp_path / "short", epochs=2, schedule=None)
    longer, state = train(tmp_path / "short", epochs=4, schedule=None, resume=True)
    at_once, expected = train(tmp_path / "long", epochs=4, schedule=None)
    assert longer.step == at_once.step
    assert_same(state, expected)


@pytest.mark.promise("P13", control=True)
@pytest.mark.parametrize("lost", ["random", "stream"])
def test_what_is_left_out_of_a_checkpoint_is_seen(
    lost: str, whole: tuple[Result, State, list[dict[str, Any]], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: a resume that forgets random numbers, or where the feed was."""
    if lost == "random":
        monkeypatch.setattr(fit_module.state_dict, "restore", lambda state: torch.manual_seed(99))
    else:
        monkeypatch.setattr("stoker.train.engine.Stream.resume", lambda self, state, taken: None)
    with pytest.raises(Crash):
        train(tmp_path / "run", crash_at=17)
    _, state = train(tmp_path / "run", resume=True)
    assert not all(torch.equal(state[name], tensor) for name, tensor in whole[1].items())


def test_an_iterable_without_a_state_is_resumed_by_leaving_out_what_was_seen(tmp_path: Path) -> None:
    count = 0

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        nonlocal count
        count += 1
        if count == 20:
            raise Crash
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    expected = network()
    trainer_of(expected, folder=tmp_path / "whole", save_every=5).fit(pairs(), epochs=3)
    with pytest.raises(Crash):
        trainer_of(network(), loss, folder=tmp_path / "run", save_every=5).fit(pairs(), epochs=3)
    resumed = network(seed=1)
    trainer_of(resumed, loss, folder=tmp_path / "run", save_every=5).fit(pairs(), epochs=3, resume=True)
    assert same_weights(resumed, expected)


@pytest.mark.promise("P13")
def test_another_configuration_is_refused_unless_allowed(tmp_path: Path) -> None:
    train(tmp_path / "run", epochs=1)
    with pytest.raises(CheckpointInvalidError, match=r"config\.max_grad_norm: 1\.0 saved, 0\.5 now"):
        train(tmp_path / "run", max_grad_norm=0.5, resume=True)


@pytest.mark.promise("P13")
def test_another_feed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Crash):
        train(tmp_path / "run", crash_at=17)
    import tests.train.runs as runs

    store = runs.make_store()
    monkeypatch.setattr(runs, "make_store", lambda: type(store).from_arrays(x=[store[i]["x"] for i in range(5)]))
    with pytest.raises(CheckpointInvalidError, match=r"data\.store: '[0-9a-f]+' saved, '[0-9a-f]+' now"):
        train(tmp_path / "run", resume=True)
    with pytest.raises(FeedError, match="other data"):  # what a position means cannot be allowed away
        train(tmp_path / "run", resume=True, allow=["data", "valid", "schedule"])


@pytest.mark.promise("P13")
def test_another_model_is_refused(tmp_path: Path) -> None:
    trainer_of(network(), folder=tmp_path / "run").fit(pairs())
    other = nn.Linear(6, 1)
    with pytest.raises(CheckpointInvalidError, match=r"model\.modules\.\(model\)\.type: 'Sequential' saved"):
        trainer_of(other, optimizer=adamw(other), folder=tmp_path / "run").fit(pairs(), epochs=2, resume=True)
    with pytest.raises(CheckpointError, match=r"another model: only the checkpoint has '0\.bias'"):
        trainer_of(other, optimizer=adamw(other), folder=tmp_path / "run").fit(
            pairs(), epochs=2, resume=True, allow=["model", "optimizer"]
        )


@pytest.mark.promise("P13")
def test_a_run_whose_checkpoints_are_gone_is_not_begun_again(tmp_path: Path) -> None:
    """It would be cut back to nothing, log included."""
    folder = tmp_path / "run"
    trainer_of(network(), folder=folder, log_every=2).fit(pairs())
    log = (folder / "metrics.jsonl").read_bytes()
    shutil.rmtree(folder / "checkpoints")
    with pytest.raises(CheckpointError, match=r"reached step 12, .*checkpoints holds no checkpoint"):
        trainer_of(network(), folder=folder).fit(pairs(), epochs=2, resume=True)
    assert (folder / "metrics.jsonl").read_bytes() == log
    result = trainer_of(network(), folder=folder).fit(pairs(), overwrite=True)
    assert result.step == 12


@pytest.mark.promise("P13")
def test_a_killed_run_whose_checkpoints_are_gone_is_not_begun_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no end that says how far it was, but it had written down that it was saved."""
    monkeypatch.setattr(fit_module, "LOOK_NS", 0)
    with pytest.raises(Crash):
        train(tmp_path / "run", crash_at=17, save_every=1)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        train(tmp_path / "run", resume=True)


@pytest.mark.promise("P13", control=True)
def test_negative_control_without_reading_the_record_the_log_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.train.trainer.step_reached", lambda record: 0)
    folder = tmp_path / "run"
    trainer_of(network(), folder=folder, log_every=2).fit(pairs())
    shutil.rmtree(folder / "checkpoints")
    trainer_of(network(), folder=folder, log_every=12).fit(pairs(), resume=True)
    assert len(log_of(folder)) == 2


def test_a_cell_that_is_run_again_replaces_its_run_where_that_is_asked_for(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for seed in (0, 1, 2):
        model = network(seed=seed)
        trainer = trainer_of(model, folder=folder)
        assert trainer.fit(pairs(), overwrite=True).step == 12
        (folder / "notes.txt").write_text("mine")
        assert trainer.fit(pairs(), epochs=2, resume=True).step == 24
    assert (folder / "notes.txt").read_text() == "mine"
    assert {line["step"] for line in log_of(folder)} == {12, 24}
    assert len(read_record(folder).sessions) == 2


@pytest.mark.promise("P13")
def test_overwriting_leaves_what_is_not_of_a_run(tmp_path: Path) -> None:
    """Only what run.json marks is removed, and of that only what stoker writes."""
    folder = tmp_path / "mine"
    (folder / "checkpoints" / "step-000000001").mkdir(parents=True)
    (folder / "checkpoints" / "step-000000001" / "weights.bin").write_text("of another tool")
    with pytest.raises(OptionError, match=r"checkpoints is there, but no run\.json says that it is of a run of stoker"):
        trainer_of(network(), folder=folder).fit(pairs(), overwrite=True)
    (folder / "run.json").write_text('{"mine": true}')
    with pytest.raises(OptionError, match=r"run\.json is damaged: .* cannot be known to be of a run of stoker"):
        trainer_of(network(), folder=folder).fit(pairs(), overwrite=True)
    assert (folder / "checkpoints" / "step-000000001" / "weights.bin").read_text() == "of another tool"
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(OptionError, match=r"metrics\.jsonl is there, but no run\.json"):
        trainer_of(network(), folder=folder).fit(pairs())
    assert (folder / "metrics.jsonl").read_text() == "{}\n"


@pytest.mark.promise("P13", control=True)
def test_negative_control_without_the_marker_files_of_other_tools_are_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = tmp_path / "theirs" / "checkpoints" / "step-000000001" / "weights.bin"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("of another tool")
    (tmp_path / "theirs" / "run.json").write_text('{"mine": true}')
    log = tmp_path / "log" / "metrics.jsonl"
    log.parent.mkdir()
    log.write_text('{"mine": true}\n')
    with monkeypatch.context() as patch:
        for module in ("run", "trainer"):
            patch.setattr(f"stoker.train.{module}.check_own", lambda folder: None)
        patch.setattr("stoker.train.trainer.check_new", lambda folder: None)
        trainer_of(network(), folder=tmp_path / "theirs").fit(pairs(), overwrite=True)
        trainer_of(network(), folder=log.parent).fit(pairs())
    assert not theirs.exists()
    assert log.read_text() != '{"mine": true}\n', "written into"


def test_a_file_beside_the_checkpoints_survives_an_overwrite(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    trainer_of(network(), folder=folder).fit(pairs())
    (folder / "checkpoints" / "best-so-far.txt").write_text("mine")
    assert trainer_of(network(), folder=folder).fit(pairs(), overwrite=True).step == 12
    assert (folder / "checkpoints" / "best-so-far.txt").read_text() == "mine"


def test_a_run_that_is_being_trained_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.train.run.LOCK_TRIES", 1)
    folder = tmp_path / "run"
    trainer_of(network(), folder=folder).fit(pairs())
    with Lock(folder), pytest.raises(TrainError, match="is being trained by process"):
        trainer_of(network(), folder=folder).fit(pairs(), overwrite=True)
    assert read_record(folder).last.last_step == 12
