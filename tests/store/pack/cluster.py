"""A cluster in this process, and files for it to pack in many small tasks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import stoker
from stoker import Store, pack
from stoker.store.pack import on_ray, tasks

ROWS = 400


class FakeRay:
    """Runs tasks in this process, in the order that they are given; the answer of each first attempt is lost, as if its node had died."""

    class exceptions:
        class RayTaskError(Exception):
            cause: Exception

    def __init__(self, run: Callable[..., Any] | None = None) -> None:
        self._run = run

    def remote(self, **options: Any) -> Any:
        assert options["max_retries"] == -1
        return lambda function: _Remote(self._run or _twice, function)

    def put(self, value: Any) -> Any:
        return value

    def wait(self, refs: list[Any], **options: Any) -> tuple[list[Any], list[Any]]:
        return refs[:1], refs[1:]

    def get(self, ref: Any) -> Any:
        return ref()


class _Remote:
    def __init__(self, run: Callable[..., Any], function: Callable[..., Any]) -> None:
        self._run, self._function = run, function

    def remote(self, *args: Any) -> Callable[[], Any]:
        return lambda: self._run(self._function, *args)


def _twice(function: Callable[..., Any], *args: Any) -> Any:
    function(*args)
    return function(*args)


def pack_on_fake(
    source: Any, path: Path | str, *, run: Callable[..., Any] | None = None, memory: str = "1GB", **options: Any
) -> Store:
    """`pack(resources=Resources(ray="ray"))` on a cluster in this process."""
    on_ray._LAST.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(on_ray, "_connect", lambda address: FakeRay(run))
        return pack(source, path, resources=stoker.Resources(ray="ray", memory=memory), **options)


def small_tasks(patch: pytest.MonkeyPatch | None = None) -> None:
    """Cut small inputs into many tasks; without a patch for good, in a process of its own."""
    if patch is None:
        tasks.MIN_TASK_BYTES = 2000
    else:
        patch.setattr(tasks, "MIN_TASK_BYTES", 2000)


def write_events(folder: Path, *, files: int = 4, rows: int = ROWS, seed: int = 0) -> str:
    """Files of events, half of which are of one user, in the order of their times; the pattern that matches them."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(files):
        users = np.where(rng.random(rows) < 0.5, 7, rng.integers(0, 30, rows))
        x = rng.standard_normal(rows)
        x[rng.integers(0, rows, 5)] = np.nan
        table = pa.table(
            {
                "user": users,
                "ts": pa.array(np.cumsum(rng.integers(1, 4, rows)) + i * 4 * rows, pa.timestamp("s")),
                "x": pa.array(x, from_pandas=True),
                "n": rng.integers(0, 2**40, rows),
                "kind": rng.choice([f"kind {k}" for k in range(3 + 2 * i)], rows),
            }
        )
        pq.write_table(table, folder / f"{i}.parquet", row_group_size=90)
    return str(folder / "*.parquet")


def contents(store: Path | Store) -> dict[str, bytes]:
    """Every byte of a store, the lock aside."""
    folder = store if isinstance(store, Path) else store.path
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name != ".lock"}
