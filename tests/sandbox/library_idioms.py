"""Libraries and processes that open files by themselves, compared with and without the sandbox; added to `IDIOMS` of file_idioms.py."""

# ruff: noqa: PTH101, PTH104, PTH105, PTH107, PTH115, PTH116, PTH118
# ruff: noqa: PTH208
from __future__ import annotations

import contextlib
import glob
import os
import shutil
import sqlite3
import stat
import subprocess
import tempfile
import warnings
from pathlib import Path
from typing import Any

import polars
import pyarrow.csv
import pyarrow.parquet
import safetensors.torch
import torch
from tests.sandbox.file_idioms import IDIOMS as IDIOMS
from tests.sandbox.file_idioms import idiom, refused, tree


def shell(command: str) -> str:
    return subprocess.run(["sh", "-c", command], check=True, capture_output=True, text=True).stdout


@idiom
def process_that_reads_what_was_written() -> Any:
    Path("log.txt").write_text("three\n")
    os.remove("model.pt")
    return shell("cat log.txt; cat log.link; ls; ls run")


@idiom
def process_that_writes() -> Any:
    shell(
        "echo three >> log.txt; mv run/last.pt run/first.pt; rm model.pt; ln -s run/first.pt model.pt; mkdir -p a/b; cp -r run a/b"
    )
    return Path("log.txt").read_text(), Path("model.pt").read_bytes(), os.readlink("model.pt"), tree()


@idiom
def process_that_moves_a_folder() -> Any:
    shell("mv run run.old; mkdir run; echo new > run/last.pt; rm -r run.old/deep")
    return Path("run/last.pt").read_text(), Path("run.old/last.pt").read_bytes(), tree()


@idiom
def arrow_files() -> Any:
    table = pyarrow.table({"a": [1, 2, 3]})
    pyarrow.parquet.write_table(table, "model.pt")  # over a file of the user's
    Path("log.txt").write_text("a,b\n1,2\n")
    rows = pyarrow.csv.read_csv("log.txt").to_pydict()
    with pyarrow.OSFile("new.arrow", "wb") as file, pyarrow.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    with pyarrow.memory_map("new.arrow") as file:
        mapped = pyarrow.ipc.open_file(file).read_all().to_pydict()
    return pyarrow.parquet.read_table("model.pt").to_pydict(), rows, mapped, tree()


@idiom
def polars_files() -> Any:
    polars.DataFrame({"a": [1, 2]}).write_parquet("run/last.pt")
    Path("log.txt").write_text("a\n7\n")
    lazily = polars.scan_parquet("run/last.pt").collect()["a"].to_list()
    polars.DataFrame({"b": [3]}).write_csv("new.csv")
    return lazily, polars.read_csv("log.txt")["a"].to_list(), Path("new.csv").read_text(), tree()


@idiom
def files_that_torch_opens_itself() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(torch.nn.Linear(2, 1)), "model.pt")
        loaded = torch.jit.load("model.pt")
    storage = torch.UntypedStorage.from_file("run/last.pt", shared=True, nbytes=4)
    storage.fill_(65)
    shared = torch.from_file("log.txt", shared=True, size=4, dtype=torch.uint8)
    shared[0] = 66
    return tuple(loaded.weight.shape), Path("run/last.pt").read_bytes(), Path("log.txt").read_text(), tree()


@idiom
def safetensors_over_a_file() -> Any:
    for value in (1.0, 2.0):
        safetensors.torch.save_file({"a": torch.full((2,), value)}, "model.pt")
        with safetensors.safe_open("model.pt", framework="np") as file:
            assert file.get_tensor("a")[0] == value
    return safetensors.torch.load_file("model.pt")["a"].tolist()


@idiom
def database_that_was_there() -> Any:
    shutil.copy("base.db", "copy.db")
    with contextlib.closing(sqlite3.connect("base.db")) as base:
        base.execute("pragma journal_mode=wal")
        base.execute("insert into losses values (2, 0.25)")
        base.commit()
        rows = base.execute("select * from losses").fetchall(), sorted(glob.glob("base.db*"))
    with contextlib.closing(sqlite3.connect("file:base.db?mode=ro", uri=True)) as base:
        return rows, base.execute("select count(*) from losses").fetchall(), tree()


@idiom
def from_temporary_files_to_here() -> Any:
    """Both are on one disk, so a rename is enough."""
    here = tempfile.mkdtemp()
    Path(here, "a").write_text("abc")
    Path(here, "b").mkdir()
    Path(here, "b", "c").write_text("def")
    os.replace(os.path.join(here, "a"), "model.pt")
    os.rename(os.path.join(here, "b"), "empty")
    os.rename("run", os.path.join(here, "run"))
    kept = Path(here, "run/deep/best.pt").read_bytes(), os.listdir(here)
    shutil.rmtree(here)
    return Path("model.pt").read_text(), Path("empty/c").read_text(), kept, tree()


@idiom
def rights() -> Any:
    """Also those that a user has not."""
    os.chmod("run", 0o500)
    found = [refused(open, "run/new", "w"), refused(open, "read-only.txt", "a")]
    os.chmod("run", 0o755)
    return found, stat.S_IMODE(os.stat("run").st_mode), os.access("read-only.txt", os.W_OK), os.getuid(), os.getgid()


@idiom
def processes_with_files_in_shared_memory() -> Any:
    tensor = torch.zeros(4).share_memory_()
    if (child := os.fork()) == 0:
        tensor += 1
        os._exit(0)
    os.waitpid(child, 0)
    return tensor.tolist()
