"""Progress: a live bar on a terminal, with a share, a rate and the time left; not a byte elsewhere."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.cli.calling import environment, slow_command


def on_a_terminal(command: list[str], folder: Path) -> tuple[int, str]:
    """Run a command whose stderr is a terminal, and return all that it showed there."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment(TERM="xterm-256color"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=slave,
    )
    os.close(slave)
    shown = b""
    try:
        while True:
            ready, _, _ = select.select([master], [], [], 60)
            assert ready, "the command hangs"
            try:
                data = os.read(master, 65536)
            except OSError:  # the last one who held the terminal has left
                break
            if not data:
                break
            shown += data
        return process.wait(timeout=200), shown.decode("utf-8", "replace")
    finally:
        os.close(master)
        process.kill()
        process.wait()


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"k": rng.integers(0, 500, 1_000_000), "x": rng.normal(size=1_000_000)}), path)
    return path


def test_a_bar_with_a_share_a_rate_and_the_time_left(table: Path, tmp_path: Path) -> None:
    command = slow_command(0.3, "pack", table, "out", "--series", "k", "--memory", "256MB")
    code, shown = on_a_terminal(command, tmp_path)
    assert code == 0, shown
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert re.search(r"(reading|merging|sealing) .*\d+%", plain)
    assert re.search(r"[1-9][\d,]* rows/s", plain)
    assert re.search(r"left +\d:\d\d:\d\d", plain)
    phases = [phase for phase in ("reading", "merging", "sealing") if phase in plain]
    assert phases[0] == "reading"


def test_a_bar_is_wiped_when_done(table: Path, tmp_path: Path) -> None:
    code, shown = on_a_terminal(slow_command(0.1, "pack", table, "out"), tmp_path)
    assert code == 0
    assert shown.endswith("\x1b[2K") or shown.rstrip("\r\n").endswith(("\x1b[2K", "\x1b[?25h"))
