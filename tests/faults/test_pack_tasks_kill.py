"""Tasks of a pack on a cluster whose processes are killed at random operations: run again, they make the bytes of one pack."""

from __future__ import annotations

import pickle
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.harness import FaultyFiles
from tests.harness.zygote import Zygote
from tests.store.pack.cluster import contents, pack_on_fake, small_tasks, write_events

import stoker
from stoker import pack
from stoker.store.pack import on_ray

OPTIONS: dict[str, dict[str, Any]] = {
    "sorted": {"series": "user", "time": "ts", "sort": True},
    "rules": {"series": "user", "time": stoker.Time("ts", duplicates="last")},
}
MOST_OPERATIONS = 60  # of a task, about: beyond these it ends before it is killed


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote(imports=("numpy", "pyarrow", "pyarrow.parquet", "stoker.store.pack.api", "stoker.store.pack.on_ray")) as started:
        yield started


def run_in_child(given: str, result: str, kill_at: int | None) -> None:
    """One task in a process of its own, which dies instead of operation `kill_at`."""
    small_tasks()
    args = pickle.loads(Path(given).read_bytes())
    if kill_at is None:
        Path(result).write_bytes(pickle.dumps(on_ray.run_task(*args)))
        return
    with FaultyFiles(kill_at=kill_at):
        on_ray.run_task(*args)


def pack_with_kills(zygote: Zygote, folder: Path, name: str, kills: int, rng: np.random.Generator) -> int:
    """Pack on a cluster whose processes are killed `kills` times per task; returns how many died."""
    source, died = write_events(folder / "raw", files=3, rows=300), 0
    pack(source, folder / "one.stoker", **OPTIONS[name])

    def run(function: Any, *args: Any) -> Any:
        nonlocal died
        given, result = folder / "given", folder / "result"
        given.write_bytes(pickle.dumps(args))
        for kill_at in [*rng.integers(0, MOST_OPERATIONS, kills).tolist(), None]:
            outcome = zygote.run(run_in_child, given=str(given), result=str(result), kill_at=kill_at)
            assert outcome.exit == 0 or outcome.signal == signal.SIGKILL, outcome
            died += outcome.exit is None
        return pickle.loads(result.read_bytes())

    with pytest.MonkeyPatch.context() as patch:
        small_tasks(patch)
        pack_on_fake(source, folder / "ray.stoker", run=run, memory="192MB", **OPTIONS[name])
    assert contents(folder / "ray.stoker") == contents(folder / "one.stoker")
    assert not (folder / "ray.stoker.parts").exists()
    return died


@pytest.mark.promise("P3")
def test_each_task_is_killed_once(zygote: Zygote, tmp_path: Path, rng: np.random.Generator) -> None:
    assert pack_with_kills(zygote, tmp_path, "sorted", 1, rng) > 5


@pytest.mark.promise("P3")
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", OPTIONS)
def test_each_task_is_killed_ten_times(zygote: Zygote, tmp_path: Path, rng: np.random.Generator, name: str) -> None:
    assert pack_with_kills(zygote, tmp_path, name, 10, rng) > 50
