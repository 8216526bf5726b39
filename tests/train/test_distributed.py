"""Several ranks: what one process would have done alone, and nobody is left waiting."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.harness import Case, Zygote
from tests.train import together
from tests.train.together import Report

from stoker.train.checkpoint import CheckpointFolder

KINDS = ("ordered", "ddp", "fsdp")
ROOT = Path(__file__).parents[2]
SAME = ("plain", "unequal", "accumulated", "unused", "skipping")
OTHERS = ("unguarded", "scalars", "guarded", "evaluated", "normalised", "chosen", "refused", "parted", "budgeted", "called_back")
RUNS = ("continued", "interrupted")


def start(torch_zygote: Zygote, folder: Path, *names: str) -> list[Case]:
    """Two ranks that do some training runs."""
    given: dict[str, Any] = {"meeting": folder / "meeting", "folder": folder, "names": names, "seconds": 250, "work_folder": ROOT}
    return [torch_zygote.start(together.be_rank, rank=rank, **given) for rank in range(2)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, Report]:
    """What one process does, and the beginning of the runs that two go on with."""
    found = {name: getattr(together, name)(folder / "alone", "auto") for name in (*SAME, "evaluated")}
    found["run"] = together.run(folder / "alone" / "run", "auto")
    for kind in KINDS:
        together.run(folder / f"continued-{kind}", "auto", stop_at=5)
    return found


@pytest.fixture(scope="module")
def reports(torch_zygote: Zygote, folder: Path, alone: dict[str, Report]) -> list[dict[str, Report]]:
    """What each of two ranks reports."""
    for rank in start(torch_zygote, folder, *(f"{name} {kind}" for name in (*SAME, *OTHERS, *RUNS) for kind in KINDS)):
        rank.wait().check()
    return [json.loads((folder / f"report-{rank}.json").read_text()) for rank in range(2)]


def assert_near(found: Report, expected: Report, *names: str) -> None:
    for name in names:
        torch.testing.assert_close(torch.tensor(found[name]), torch.tensor(expected[name]), rtol=2e-5, atol=2e-6, equal_nan=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SAME)
def test_ranks_do_together_what_one_process_does(name: str, kind: str, reports: list[dict[str, Report]], alone: Any) -> None:
    found = reports[0][f"{name} {kind}"]
    assert len(found["losses"]) == len(alone[name]["losses"]) > 0
    assert_near(found, alone[name], "losses", "weights", "ema")


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])  # ordered sums leave out ranks without a sample
def test_without_a_row_that_poses_as_a_sample_a_rank_without_any_would_stop_all(
    kind: str, reports: list[dict[str, Report]]
) -> None:
    """Negative control of the test above."""
    assert all("the loss is nan at update 2 " in report[f"unguarded {kind}"]["error"] for report in reports)


@pytest.mark.parametrize("kind", KINDS)
def test_further_numbers_of_the_loss_are_those_of_all_samples(kind: str, reports: list[dict[str, Report]]) -> None:
    found = reports[0][f"scalars {kind}"]
    assert found["again"] == pytest.approx([loss + 1 for loss in found["losses"]], rel=1e-6)
    assert len(found["again"]) == 4


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_finite_on_one_rank_stops_all_before_it_reaches_a_weight(kind: str, reports: list[dict[str, Report]]) -> None:
    first, second = (report[f"guarded {kind}"] for report in reports)
    assert "at update 3 of epoch 0 (rank 0: batch 3 of the pass; rank 1: batch 3 of the pass)" in first["error"]
    assert second["error"] == first["error"]
    good = together.fitted(together.pairs(3), epochs=1, ema=0.9)
    assert_near(first, good, "weights", "ema")


@pytest.mark.parametrize("kind", KINDS)
def test_an_evaluation_is_that_of_all_samples(kind: str, reports: list[dict[str, Report]], alone: dict[str, Report]) -> None:
    first, second = (report[f"evaluated {kind}"]["values"] for report in reports)
    assert first == second
    assert first == pytest.approx(alone["evaluated"]["values"], rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_running_statistics_are_those_of_all_ranks(kind: str, reports: list[dict[str, Report]]) -> None:
    first, second = (report[f"normalised {kind}"] for report in reports)
    assert first == second
    alone = together.network(norm=True)
    together.fitted(together.pairs(), model=alone)
    assert first["mean"] == pytest.approx(alone[0].running_mean.tolist(), rel=1e-4)  # type: ignore[union-attr, operator]


@pytest.mark.parametrize("kind", KINDS)
def test_all_ranks_do_steps_as_the_first_one_chose(kind: str, reports: list[dict[str, Report]]) -> None:
    first, second = (report[f"chosen {kind}"] for report in reports)
    assert first == second
    assert first["trials"]["graph"] == "2 ranks train together, and a graph is of one process"
    assert ("bf16" in first["trials"]) == (kind != "fsdp")
    assert ("choice" in first["trials"]) == (kind == "fsdp")


@pytest.mark.parametrize("kind", KINDS)
def test_what_would_let_ranks_wait_forever_is_refused_on_all(kind: str, reports: list[dict[str, Report]]) -> None:
    first, second = (report[f"refused {kind}"]["errors"] for report in reports)
    assert (
        first[0]
        == second[0]
        == ("OptionError: updates of the training: 12 on rank 0, but 11 on rank 1; expected the same on all ranks.")
    )
    assert "holds a run already" in first[1]
    assert second[1] == f"TrainError: rank 0 has stopped: {first[1]}"
    assert "the shapes of the model's weights" in first[2]
    assert first[3] == second[3] == "OptionError: execution.parallel is 'all'; expected one of 'auto', 'ddp', 'fsdp', 'ordered'."


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_share_weights_but_not_random_numbers(kind: str, reports: list[dict[str, Report]]) -> None:
    first, second = (report[f"parted {kind}"] for report in reports)
    assert first["own"] == second["own"]
    assert first["random"] != second["random"]


@pytest.mark.parametrize("kind", KINDS)
def test_time_that_is_over_on_one_rank_is_over_on_all(kind: str, reports: list[dict[str, Report]]) -> None:
    first, second = (report[f"budgeted {kind}"] for report in reports)
    assert first == second == {"stopped": "budget", "step": 1}


@pytest.mark.promise("P13")
@pytest.mark.parametrize("kind", KINDS)
def test_a_callback_of_one_rank_ends_all(kind: str, reports: list[dict[str, Report]]) -> None:
    first, second = (report[f"called_back {kind}"] for report in reports)
    assert first == second == {"stopped": "callback", "epoch": 1}


@pytest.mark.parametrize("kind", KINDS)
def test_one_then_two_then_one_process(kind: str, folder: Path, reports: list[dict[str, Report]], alone: dict[str, Report]) -> None:
    """One is stopped in the first epoch, two go on into the second, and one ends it: as if one had done it all."""
    assert all(report[f"continued {kind}"]["stopped"] == "signal" for report in reports)
    last = together.run(folder / f"continued-{kind}", "auto", resume=True)
    assert_near(last, alone["run"], "weights", "ema")
    losses, expected = (
        [line["loss"] for line in lines_of(one)] for one in (folder / f"continued-{kind}", folder / "alone" / "run")
    )
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), rtol=2e-5, atol=2e-6, equal_nan=True)


def lines_of(run: Path, name: str = "loss") -> list[dict[str, Any]]:
    return [line for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()) if name in line]


@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_that_are_stopped_and_continue_end_equal_to_the_last_bit(kind: str, reports: list[dict[str, Report]]) -> None:
    found = reports[0][f"interrupted {kind}"]
    assert [stop["stopped"] for stop in found["stops"]] == ["signal", "signal"]
    assert found["last"]["weights"] == found["whole"]["weights"]
    assert found["last"]["ema"] == found["whole"]["ema"]
    assert found["last"]["valid"][-1] == found["whole"]["valid"][-1]


def test_a_signal_to_all_ranks_saves_once_and_ends_them(torch_zygote: Zygote, tmp_path: Path) -> None:
    ranks = start(torch_zygote, tmp_path, "waiting ddp")
    while not all((tmp_path / f"ready-{rank}").exists() for rank in range(2)):
        assert all(Path(f"/proc/{rank.pid}").exists() for rank in ranks), [rank.wait() for rank in ranks]
        time.sleep(0.05)
    for rank in ranks:
        rank.kill(signal.SIGTERM)
    assert [rank.wait().signal for rank in ranks] == [signal.SIGTERM, signal.SIGTERM]
    with CheckpointFolder(tmp_path / "run" / "checkpoints") as checkpoints:
        found = checkpoints.latest(strict=True)
    assert found.step >= 29
    assert len(list((tmp_path / "run" / "checkpoints").glob("step-*"))) == 1


def test_a_rank_that_fails_does_not_leave_the_other_waiting(torch_zygote: Zygote, tmp_path: Path) -> None:
    first, second = (rank.wait() for rank in start(torch_zygote, tmp_path, "crashing ddp"))
    assert first.exit != 0
    assert second.error == "RuntimeError: a fault of one rank"
