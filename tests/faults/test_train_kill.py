"""A training run that is killed, or asked to end: it resumes from what is saved, and ends bit for bit as if nothing had happened."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.harness import Zygote
from tests.train.runs import log_of, train_in_child

EPOCHS = 10


pytestmark = pytest.mark.timeout(900)
"""About 10 s of CPU time, of which a busy machine may give a tenth."""


@pytest.fixture(scope="module")
def whole(torch_zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[Any], float]:
    """What a run that nobody ends reaches, its log, and the CPU time that it takes."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    value = torch_zygote.run(train_in_child, seconds=900, folder=folder, resume=False, epochs=EPOCHS).check()
    return value["reached"], log_of(folder), value["cpu_seconds"]


def kill_until_done(
    torch_zygote: Zygote, folder: Path, rng: np.random.Generator, cpu_seconds: float, number: int, kills: int
) -> tuple[dict[str, Any], int, int]:
    """Start the run again and again, and end it after a random part of the CPU time that all of it takes.

    Returns what it reached, how often it was ended, and how often after its first checkpoint.
    """
    late = 0
    for done in range(kills + 1):
        end_after = rng.uniform(0, cpu_seconds) if done < kills else None
        outcome = torch_zygote.run(
            train_in_child, seconds=900, folder=folder, resume=True, epochs=EPOCHS, end_after=end_after, number=int(number)
        )
        if outcome.exit == 0:
            return outcome.value["reached"], done, late
        ends = (signal.SIGPROF,) if number == signal.SIGKILL else (number,)
        assert outcome.signal in ends or (number != signal.SIGKILL and outcome.exit == 1), outcome
        late += (folder / "checkpoints" / "LATEST").exists()
    raise AssertionError("the run never came to its end")


MOST_RUNS = 20


def check_kills(torch_zygote: Zygote, whole: Any, folder: Path, rng: np.random.Generator, kills: int, number: int) -> int:
    expected, log, cpu_seconds = whole
    done = run = late = 0
    while done < kills or (not late and run < MOST_RUNS):  # moments are random: some may all come before the first checkpoint
        value, more, more_late = kill_until_done(torch_zygote, folder / str(run), rng, cpu_seconds, number, 4)
        assert value == expected
        if number == signal.SIGKILL:  # a run that was asked to end has a checkpoint, and so the end of a window, where it was
            assert log_of(folder / str(run)) == log
        done, run, late = done + more, run + 1, late + more_late
    assert late, "no kill came after the first checkpoint, so nothing was resumed"
    return done


@pytest.mark.promise("P13")
@pytest.mark.parametrize("kills", [4, pytest.param(12, marks=pytest.mark.slow)])
def test_kills_leave_no_trace(torch_zygote: Zygote, whole: Any, tmp_path: Path, rng: np.random.Generator, kills: int) -> None:
    assert check_kills(torch_zygote, whole, tmp_path, rng, kills, signal.SIGKILL) >= kills


@pytest.mark.promise("P13")
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, *(pytest.param(one, marks=pytest.mark.slow) for one in (signal.SIGINT, signal.SIGHUP))]
)
def test_a_run_that_is_asked_to_end_continues(
    torch_zygote: Zygote, whole: Any, tmp_path: Path, rng: np.random.Generator, number: int
) -> None:
    assert check_kills(torch_zygote, whole, tmp_path, rng, 4, number) >= 4


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_thousand_kills_leave_no_trace(torch_zygote: Zygote, whole: Any, tmp_path: Path, rng: np.random.Generator) -> None:
    assert check_kills(torch_zygote, whole, tmp_path, rng, 1000, signal.SIGKILL) >= 1000
