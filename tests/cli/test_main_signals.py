"""Ctrl-C and SIGTERM: a clear line, the right exit code, and work that the same command goes on with."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.cli.calling import Done, call, environment, slow_command

from stoker.cli.main import cli
from stoker.errors import StokerError
from stoker.store.opening import open_store
from stoker.store.pack.api import pack

LINE = "stoker: stopped. Run the same command again to resume.\n"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    rng = np.random.default_rng(0)
    for name in "ab":
        table = pa.table({"k": rng.integers(0, 999, 400_000), "x": rng.normal(size=400_000)})
        pq.write_table(table, folder / f"{name}.parquet", row_group_size=50_000)
    return folder


def wait_for(condition: object, process: subprocess.Popen[str]) -> None:
    """Until something is true; the process must not end before."""
    for _ in range(20_000):
        if callable(condition) and condition():
            return
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        time.sleep(0.01)
    pytest.fail("it never came to that")


def start(command: list[str], folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8"
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)])
def test_a_stopped_pack_continues(inputs: Path, tmp_path: Path, number: signal.Signals, code: int) -> None:
    arguments = ("pack", inputs, "out", "--series", "k", "--memory", "256MB")
    process = start(slow_command(0.2, *arguments), tmp_path)
    wait_for((tmp_path / "out" / "work" / "journal").exists, process)
    process.send_signal(number)
    out, err = process.communicate(timeout=200)
    assert (process.returncode, out, err.split("…\n")[-1].lstrip("\n")) == (code, "", LINE)
    assert (tmp_path / "out" / "work" / "journal").exists()
    assert not (tmp_path / "out" / "manifest.json").exists()
    done = call(slow_command(0, *arguments), tmp_path)
    assert done.code == 0, done.err
    whole = pack(inputs, tmp_path / "whole", series="k")
    assert open_store(tmp_path / "out").digest == whole.digest
    assert not (tmp_path / "out" / "work").exists()


def test_a_stopped_pack_keeps_the_store_that_was_there(inputs: Path, tmp_path: Path) -> None:
    old = pack({"x": [1.0]}, tmp_path / "out")
    process = start(slow_command(0.2, "pack", inputs, "out", "--series", "k", "--overwrite"), tmp_path)
    wait_for((tmp_path / "out" / "work" / "run0.n").exists, process)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=200)
    assert process.returncode == 130
    assert open_store(tmp_path / "out").digest == old.digest


@pytest.mark.parametrize("replacement", [TypeError, OSError, StokerError], ids=lambda kind: kind.__name__)
def test_an_error_that_a_library_makes_of_a_stop_ends_the_command_as_the_stop(
    stoker: Callable[..., Done], monkeypatch: pytest.MonkeyPatch, replacement: type[Exception]
) -> None:
    """As where safetensors reads a file: "could not determine the shape"."""
    numbers = iter([signal.SIGINT, signal.SIGTERM])

    def command(*arguments: object, **options: object) -> None:
        if (number := next(numbers, None)) is None:
            raise replacement("damaged")
        try:
            os.kill(os.getpid(), number)
            sum(range(1000))
        except BaseException:
            raise replacement("damaged") from None

    monkeypatch.setattr(cli, "main", command)
    before = signal.getsignal(signal.SIGINT), sys.unraisablehook
    try:
        for code in (130, 143):
            assert stoker("inspect") == Done(code, "", "stoker: stopped. Run the same command again.\n")
        # Negative control: without a signal it is the error, also after a command that was stopped.
        if replacement is TypeError:
            with pytest.raises(TypeError, match="damaged"):
                stoker("inspect")
        else:
            assert stoker("inspect") == Done(2, "", "stoker: damaged\n")
    finally:
        signal.signal(signal.SIGINT, before[0])
        sys.unraisablehook = before[1]


def test_no_one_waits_for_the_hash_of_a_huge_file(tmp_path: Path) -> None:
    """A terabyte, nearly all of it a hole: hashing it would take many minutes."""
    pq.write_table(pa.table({"x": np.arange(1_000_000.0)}), tmp_path / "small.parquet", row_group_size=50_000, compression="none")
    small = (tmp_path / "small.parquet").read_bytes()
    footer = int.from_bytes(small[-8:-4], "little") + 8
    with (tmp_path / "huge.parquet").open("wb") as file:
        file.write(small[:-footer])
        file.seek(1 << 40)
        file.write(small[-footer:])
    process = start(slow_command(0.2, "pack", "huge.parquet", "out", "--memory", "256MB"), tmp_path)
    wait_for((tmp_path / "out" / "work" / "run0.n").exists, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=200)
    assert (process.returncode, err.split("…\n")[-1].lstrip("\n")) == (130, LINE)
    os.truncate(tmp_path / "huge.parquet", 0)
