"""A training that is killed, or asked to end: it goes on from what is saved, and ends bit for bit as if nothing had happened."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.train.runs import log_of, train_in_child

from stoker.testing import Zygote

EPOCHS = 20


@pytest.fixture(scope="module")
def trainers() -> Iterator[Zygote]:
    """A process that is ready to train; a fresh one would take seconds to import torch."""
    with Zygote(imports=("numpy", "torch", "stoker.train.trainer", "stoker.feed.feed", "tests.train.runs")) as zygote:
        yield zygote


@pytest.fixture(scope="module")
def whole(trainers: Zygote, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[Any], float]:
    """What a run that nobody ends reaches, its log, and how long it takes."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    begin = time.perf_counter()
    outcome = trainers.run(train_in_child, folder=folder, resume=False, epochs=EPOCHS)
    return outcome.check(), log_of(folder), time.perf_counter() - begin


def kill_until_done(
    trainers: Zygote, folder: Path, rng: np.random.Generator, seconds: float, number: int, kills: int
) -> tuple[dict[str, Any], int]:
    """Start the run again and again, and end it after a random part of the time that all of it takes."""
    for done in range(20 * kills):
        case = trainers.start(train_in_child, folder=folder, resume=True, epochs=EPOCHS)
        if done < kills:
            time.sleep(rng.uniform(0, 0.6 * seconds))
            case.kill(number)
        outcome = case.wait()
        if outcome.exit == 0:
            value: dict[str, Any] = outcome.check()
            return value, done
        assert outcome.signal == number or (number != signal.SIGKILL and outcome.exit == 1), outcome
    raise AssertionError("the run never came to its end")


def check_kills(trainers: Zygote, whole: Any, folder: Path, rng: np.random.Generator, kills: int, number: int) -> int:
    expected, log, seconds = whole
    done = run = 0
    while done < kills:
        value, more = kill_until_done(trainers, folder / str(run), rng, seconds, number, 4)
        assert value == expected
        if number == signal.SIGKILL:  # a run that was asked to end has a checkpoint, and so the end of a window, where it was
            assert log_of(folder / str(run)) == log
        done, run = done + more, run + 1
    return done


def test_thirty_kills_leave_no_trace(trainers: Zygote, whole: Any, tmp_path: Path, rng: np.random.Generator) -> None:
    assert check_kills(trainers, whole, tmp_path, rng, 30, signal.SIGKILL) >= 30


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_run_that_is_asked_to_end_goes_on(
    trainers: Zygote, whole: Any, tmp_path: Path, rng: np.random.Generator, number: int
) -> None:
    assert check_kills(trainers, whole, tmp_path, rng, 4, number) >= 4


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_thousand_kills_leave_no_trace(trainers: Zygote, whole: Any, tmp_path: Path, rng: np.random.Generator) -> None:
    assert check_kills(trainers, whole, tmp_path, rng, 1000, signal.SIGKILL) >= 1000
