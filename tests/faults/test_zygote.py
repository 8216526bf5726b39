"""The zygote: children that die, hang or exhaust memory are outcomes, and the zygote goes on."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from tests.harness import Zygote

from stoker.errors import DiskFullError


def answer(number: int) -> dict[str, Any]:
    return {"number": number, "folder": str(Path.cwd()), "pid": os.getpid()}


def fail() -> None:
    raise DiskFullError(errno.ENOSPC, "no space")


def take_memory(num_bytes: int) -> int:
    return len(bytearray(num_bytes))


def count_threads_of_zygote() -> int:
    return len(list(Path(f"/proc/{os.getppid()}/task").iterdir()))


def read_arrow() -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"x": list(range(1000))}), "table.parquet")
    return int(pq.read_table("table.parquet", use_threads=True).num_rows)


def test_a_child_returns_a_value_from_a_folder_of_its_own(zygote: Zygote, tmp_path: Path) -> None:
    first, second = zygote.run(answer, number=1).check(), zygote.run(answer, number=2).check()
    assert (first["number"], second["number"]) == (1, 2)
    assert first["pid"] != second["pid"] != os.getpid()
    assert first["folder"] != second["folder"]
    assert not Path(first["folder"]).exists()
    assert zygote.run(answer, number=3, work_folder=tmp_path).check()["folder"] == str(tmp_path)


def test_an_exception_is_reported_with_type_message_and_trace(zygote: Zygote) -> None:
    outcome = zygote.run(fail)
    assert (outcome.exit, outcome.error) == (1, "DiskFullError: [Errno 28] no space")
    assert outcome.trace is not None
    assert "in fail" in outcome.trace
    with pytest.raises(ChildProcessError, match="in fail"):
        outcome.check()


def test_memory_is_limited_on_request_only(zygote: Zygote) -> None:
    outcome = zygote.run(take_memory, num_bytes=300 << 20, memory_bytes=200 << 20)
    assert outcome.error is not None
    assert outcome.error.startswith("MemoryError")
    assert zygote.run(take_memory, num_bytes=300 << 20).check() == 300 << 20


def test_the_zygote_has_no_threads_so_that_children_can_use_arrow(zygote: Zygote) -> None:
    assert zygote.run(count_threads_of_zygote).check() == 1
    assert zygote.run(read_arrow, seconds=20).check() == 1000
    assert zygote.run(count_threads_of_zygote).check() == 1
