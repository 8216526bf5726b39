"""What all tests share: seeds that are printed and can be replayed, fresh interpreters, and traces of dying processes."""

from __future__ import annotations

import faulthandler
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import numpy as np
import pytest

from stoker.testing import Zygote

# A shared machine may stall any example, so time limits are pytest's; a failure prints the line that replays it.
hypothesis.settings.register_profile("stoker", deadline=None, print_blob=True)
hypothesis.settings.load_profile("stoker")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, metavar="N", help="seed of the `rng` fixture, to replay a failure")


def pytest_configure(config: pytest.Config) -> None:
    if not faulthandler.is_enabled():
        faulthandler.enable()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        # Who starts tests in the background, or by nohup, lets children ignore signals; some of them are meant to end by one.
        if signal.getsignal(number) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    os.environ["PYTHONFAULTHANDLER"] = "1"  # for child processes: some of them are meant to die
    os.environ["HF_HUB_OFFLINE"] = "1"  # no test needs a network, so none may wait for one


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A new seed for every run, or that of `--seed`; pytest shows the line when the test fails."""
    given: int | None = request.config.getoption("--seed")
    seed = secrets.randbits(32) if given is None else given
    print(f"replay with: pytest '{request.node.nodeid}' --seed {seed}")
    return seed


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    """Random numbers from `seed`."""
    return np.random.default_rng(seed)


@pytest.fixture
def run_python(tmp_path: Path) -> Callable[..., str]:
    """Run code in a fresh interpreter, in an empty folder, and return what it printed; it must end well."""

    def run(code: str, *arguments: str) -> str:
        command = [sys.executable, "-c", code, *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """A warm process that forks a child for each case."""
    with Zygote() as zygote:
        yield zygote
