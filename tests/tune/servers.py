"""A PostgreSQL server of a test's own, on a socket in a folder of the test."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def postgres_server(folder: Path, *, password: str | None = None) -> Iterator[str]:
    """The URL of a server; with a password, nobody gets in without it."""
    binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    where = str(binaries[-1]) if binaries else str(Path(shutil.which("initdb") or "").parent)
    if not Path(where, "initdb").is_file():
        pytest.skip("there is no PostgreSQL server on this machine (Debian: apt install postgresql)")
    pytest.importorskip("psycopg", reason="the driver of PostgreSQL is not installed (pip install 'psycopg[binary]')")
    data, run = folder / "data", folder / "run"
    as_user: list[str] = []
    if os.getuid() == 0:  # the server refuses to run as root
        as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        shutil.chown(folder, "postgres")
        for parent in [folder, *folder.parents][:3]:
            parent.chmod(parent.stat().st_mode | 0o055)

    def call(*words: str) -> None:
        subprocess.run([*as_user, *words], check=True, capture_output=True, cwd=folder)

    call("mkdir", "-p", str(run))
    access = ["--auth=trust"]
    if password is not None:
        (folder / "password").write_text(password)
        access = ["--auth=scram-sha-256", f"--pwfile={folder / 'password'}"]
    call(f"{where}/initdb", "-D", str(data), "-U", "tester", *access, "--no-sync")
    options = f"-k {run} -c listen_addresses=''"
    call(f"{where}/pg_ctl", "-D", str(data), "-w", "-l", str(folder / "server.log"), "-o", options, "start")
    try:
        yield f"postgresql://tester{'' if password is None else f':{password}'}@/postgres?host={run}"
    finally:
        os.kill(int((data / "postmaster.pid").read_text().split()[0]), signal.SIGQUIT)
