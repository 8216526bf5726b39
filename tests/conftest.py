"""What all tests share: fixed seeds, fresh interpreters, and traces of dying processes.

Two runs of the suite do the same: every seed is derived from the name of its test, and hypothesis is derandomised. `--explore`
draws new seeds instead (`make explore`); what it finds becomes a fixed example of its test.
"""

from __future__ import annotations

import compileall
import faulthandler
import functools
import gc
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from tests.cli.calling import Done, check_end
from tests.harness import Zygote, network

# A shared machine may stall any example, so time limits are pytest's; a failure prints the line that replays it.
# The fixed examples are the same in each run, so the quick tests try a seventh of them; `--explore` tries all, and new ones.
hypothesis.settings.register_profile("fixed", deadline=None, print_blob=True, derandomize=True, max_examples=15)
hypothesis.settings.register_profile("explore", deadline=None, print_blob=True)


TESTS = Path(__file__).parent
MEMORY = Path("/dev/shm")
ROOM_BYTES = 4 << 30
ON_DISK = frozenset({"benchmarks", "compare", "diagnose", "sandbox", "watch"})
"""Folders of tests about the disk itself, or about what programs do with it. The files of others are in memory."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, metavar="N", help="seed of the `rng` fixture, to replay a failure")
    parser.addoption("--explore", action="store_true", help="draw new seeds instead of the fixed ones")


def pytest_configure(config: pytest.Config) -> None:
    hypothesis.settings.load_profile("explore" if config.getoption("--explore") else "fixed")
    if not faulthandler.is_enabled():
        faulthandler.enable()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        # Who starts tests in the background, or by nohup, lets children ignore signals; some of them are meant to end by one.
        if signal.getsignal(number) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    # Also where PYTHONDONTWRITEBYTECODE is set, keep the compiled modules of the repository: rewriting the asserts of all test files
    # is most of the time of a collection. Child processes would compile stoker each: 0.7 s of CPU time. Pytest keeps modules in files
    # of its own, as it rewrites the asserts of each package that has a plugin.
    sys.dont_write_bytecode = False
    worker = getattr(config, "workerinput", {}).get("workerid")
    if worker is None:
        compileall.compile_dir(TESTS.parent / "packages", quiet=2)
    elif worker == "gw1" and config.args == config.getini("testpaths"):
        # Two processes that collect all files begin at both ends, so that each rewrites half of the asserts.
        config.args = [str(path) for path in sorted(TESTS.iterdir(), reverse=True) if path.is_dir() or path.match("test_*.py")]
    os.environ["PYTHONFAULTHANDLER"] = "1"  # for child processes: some of them are meant to die
    patch = pytest.MonkeyPatch()
    network.stay_on_this_machine(patch)  # no test needs another host, so none may wait for one
    config.add_cleanup(patch.undo)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All processes have the same order of files, whichever they collected first."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: item.path.parts)


def pytest_collection_finish() -> None:
    """Keep the garbage collector from walking through all imported libraries: a collection takes a second otherwise."""
    gc.collect()
    gc.freeze()
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))  # no __pycache__ in the folders of tests


def pytest_runtest_setup(item: pytest.Item) -> None:
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is not None:
        dynamo.counters.clear()  # what an earlier test compiled: a diagnosis asks whether its process has compiled anything
    if item.get_closest_marker("gpu") and not _has_gpu():
        pytest.skip("needs a GPU")


@functools.cache
def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


@pytest.fixture(scope="module", autouse=True)
def quick_collections() -> None:
    """Keep the garbage collector from walking through what earlier files have imported: a quarter of a second each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def one_thread(request: pytest.FixtureRequest) -> Iterator[None]:
    """One thread of torch: models of tests are so small that threads would mostly wait for each other. A diagnosis measures them."""
    torch = sys.modules.get("torch")
    if torch is None or request.path.relative_to(TESTS).parts[0] == "diagnose":
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def stays_on_this_machine() -> Iterator[None]:
    """Fail a test that tried to contact another host, also where the code under test took the refusal for an error of the network."""
    network.attempts.clear()
    yield
    if network.attempts:
        pytest.fail(f"the test contacts other hosts: {'; '.join(network.attempts[:5])}")


@pytest.fixture(autouse=True)
def seed_of_test(request: pytest.FixtureRequest) -> int:
    """A seed of this test's own, the same in every run, given to all global generators.

    Pytest shows the line that replays it when the test fails. Tests ask for `seed` or `rng`; a parameter named `seed` hides
    that fixture and not this one.
    """
    given: int | None = request.config.getoption("--seed")
    if given is None:
        given = secrets.randbits(32) if request.config.getoption("--explore") else zlib.crc32(request.node.nodeid.encode())
    print(f"replay with: pytest '{request.node.nodeid}' --seed {given}")
    random.seed(given)
    np.random.seed(given)
    if "torch" in sys.modules:
        _seed_torch(sys.modules["torch"], given)
    return given


def _seed_torch(torch: Any, seed: int) -> None:
    """Without a GPU, `torch.manual_seed` would format the stack three times to seed one later: a millisecond per test."""
    (torch if _has_gpu() else torch.default_generator).manual_seed(seed)


@pytest.fixture
def seed(seed_of_test: int) -> int:
    """The seed of this test."""
    return seed_of_test


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    """Random numbers from `seed`."""
    return np.random.default_rng(seed)


@functools.cache
def _has_room() -> bool:
    return os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM_BYTES


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A folder of this test, in memory where most time would be spent waiting for a sync: a store is hundreds of them."""
    if request.path.relative_to(TESTS).parts[0] in ON_DISK or request.path.parent == TESTS or not _has_room():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="stoker-test-", dir=MEMORY, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture
def run_python(tmp_path: Path) -> Callable[..., str]:
    """Run code in a fresh interpreter, in an empty folder, and return what it printed; it must end well."""

    def run(code: str, *arguments: str) -> str:
        command = [sys.executable, "-c", code, *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """A warm process that forks a child for each case."""
    with Zygote() as zygote:
        yield zygote


@pytest.fixture(scope="session")
def torch_zygote() -> Iterator[Zygote]:
    """The same with all that the first training run of a process imports: five seconds, once for all files of tests."""
    late = ("torch._dynamo", "scipy.linalg", "numba.np.arraymath")
    with Zygote(imports=("numpy", "pyarrow", "torch", *late, "stoker.train.trainer", "stoker.feed.feed")) as zygote:
        yield zygote


@pytest.fixture
def stoker(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Done]]:
    """Call `stoker` with arguments; its handler of SIGTERM is taken away again."""
    from stoker.cli.main import main

    before = signal.getsignal(signal.SIGTERM)

    def run(*arguments: str | Path) -> Done:
        capsys.readouterr()
        code: object = 0
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = end.code
        out, err = capsys.readouterr()
        done = Done.of(code if isinstance(code, int) else -1, out, err)
        check_end([str(argument) for argument in arguments], done)
        return done

    yield run
    signal.signal(signal.SIGTERM, before)
