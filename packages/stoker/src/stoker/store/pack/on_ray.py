"""A pack on a Ray cluster: the tasks of `tasks.py`, one per CPU, wherever Ray finds one.

Ray starts a task again on another node if its process or node dies; a task that was run twice leaves one result. This process hands out
tasks, holds the plan and the results, and shows progress. It need not see the data: sources and target must be visible to the nodes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from stoker._disk import check_path
from stoker._text import how_to_install, is_url, redact
from stoker.errors import OptionError, StokerError
from stoker.store.formats.discover import Files
from stoker.store.pack import tasks
from stoker.store.pack.exchange import open_exchange
from stoker.store.pack.options import PackOptions
from stoker.store.pack.packer import Progress
from stoker.store.pack.tasks import PackTasks, TaskPlan, TypesChangedError

_POLL_S = 0.5


def pack_on_ray(
    address: str, source: object, path: str | os.PathLike[str], options: PackOptions, progress: Progress, *, replace: bool
) -> None:
    """Pack on the cluster at `address` ("ray": the one of this machine, or a new one)."""
    _refuse_options(options)
    request = (_absolute(source), _target(path), dataclasses.replace(options, threads=1), replace)
    ray = _connect(address)
    remote = ray.remote(num_cpus=1, max_retries=-1)(run_task)

    def ask(kind: str, plan: Any, *given: Any) -> Any:
        return _result(ray, remote.remote(request, kind, plan, *given))

    ask("start", None)
    try:
        plan: TaskPlan = ask("plan", None)
        while True:  # until the types of the plan hold all values
            shared = ray.put(plan)
            results = _read_all(ray, partial(remote.remote, request, "read", shared), len(plan.tasks), progress)
            if None in results:
                plan = ask("settle", shared)
                continue
            progress("joining", 0.0, 0)
            if ask("join", shared, ray.put(results)) is not None:
                break
            plan = dataclasses.replace(plan, number=os.urandom(8).hex(), widened=True)
        progress("joining", 1.0, 0)
    except Exception:
        with contextlib.suppress(Exception):  # the first error is the one to report
            ask("clear", None)
        raise
    ask("clear", None)


def _read_all(ray: Any, start: Callable[[int], Any], count: int, progress: Progress) -> list[Any]:
    """Run the tasks that read, and return their results in order."""
    refs = [start(i) for i in range(count)]
    waiting = refs
    while waiting:
        _, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=_POLL_S)
        progress("reading", (count - len(waiting)) / count, 0)
    return [_result(ray, ref) for ref in refs]


_LAST: dict[str, PackTasks] = {}
"""What this process of the cluster knows of the plan that it works for: sources are listed, and results are read, once."""


def run_task(request: tuple[Any, ...], kind: str, plan: TaskPlan | None, *given: Any) -> Any:
    """One task of a pack, in a process of the cluster; None if the types of the plan do not hold all values."""
    source, target, options, replace = request
    if plan is None:
        match kind:
            case "start":
                tasks.start(target, replace=replace)
            case "plan":
                return tasks.make_task_plan(source, options)
            case "clear":
                open_exchange(target).clear()
        return True
    if plan.number not in _LAST:
        _LAST.clear()
        _LAST[plan.number] = PackTasks(source, target, options, plan, replace=replace)
    try:
        return getattr(_LAST[plan.number], kind)(*given)
    except TypesChangedError:
        return None


def _refuse_options(options: PackOptions) -> None:
    if options.sql is not None:
        raise OptionError(
            "sql= is one statement over all rows, which one process runs. Leave Resources(ray=) out, or pack the result of another pack.",
            parameter="sql",
        )
    if options.times is not None and options.times.timezone is not None and options.times.ambiguous == "infer":
        raise OptionError(
            "ambiguous='infer' follows the rows of a series through all files, which several processes cannot. Pass "
            "Time(ambiguous='first'), 'last' or 'error', or leave Resources(ray=) out.",
            parameter="ambiguous",
        )


def _target(path: str | os.PathLike[str]) -> str:
    return str(path) if is_url(path) else str(check_path(path).absolute())


def _absolute(source: Any) -> Any:
    """Paths that mean the same in every process."""
    if isinstance(source, str | os.PathLike):
        return source if is_url(source) else str(Path(source).absolute())
    if isinstance(source, list | tuple) and source and all(isinstance(path, str | os.PathLike) for path in source):
        return [_absolute(path) for path in source]
    if isinstance(source, Files):
        return dataclasses.replace(source, source=_absolute(source.source))
    raise OptionError(
        "a table in memory is not seen by other processes. Give files or URLs, or leave out Resources(ray=).", parameter="ray"
    )


def _connect(address: str) -> Any:
    """Return the module `ray`, connected to the cluster at `address` ("ray": the one of this machine, or a new one)."""
    # Addresses have no credentials.
    if not isinstance(address, str) or (address != "ray" and not re.fullmatch(r"ray://[\w.-]+(:\d+)?", address)):
        raise OptionError(
            f"ray={redact(str(address))!r} is invalid; expected 'ray', or the address of a cluster like 'ray://head:10001'.",
            parameter="ray",
        )
    try:
        import ray
    except ImportError:
        raise OptionError(f"ray={address!r} needs the package ray. {how_to_install('ray')}", parameter="ray") from None
    if not ray.is_initialized():
        ray.init(address=None if address == "ray" else address, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    return ray


def _result(ray: Any, ref: Any) -> Any:
    """Return the result of a task; errors of Stoker are raised as they are."""
    try:
        return ray.get(ref)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, StokerError):
            raise error.cause from None
        raise
