"""A pack on a Ray cluster: the tasks of `parts.PartedPack`, one per CPU, wherever Ray finds one.

Ray starts a task again on another node if its process or node dies; a task that was run twice leaves one result. This process only
hands out tasks and shows progress, so it need not see the data: sources and target must be visible to the nodes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from stoker._clock import now_ns
from stoker._disk import check_path
from stoker._ray_tasks import connect, result
from stoker._text import is_url
from stoker.errors import OptionError, PartsMissingError
from stoker.store.pack.options import PackOptions
from stoker.store.pack.packer import Progress, quiet
from stoker.store.pack.parts import PartedPack, finish_join, is_begun
from stoker.store.pack.shared_plan import Schemas, inspect_sources

_PHASES = {"inspect": "inspecting", "read": "reading", "merge": "merging", "join": "joining"}
_MAX_INSPECTORS = 64
_POLL_S = 0.5
_ASK_NS = 5 * 10**9
"""After how long without a finished task the nodes are asked how far they are: another process has to start for it."""
_ROUNDS = 3
"""Types may change twice while rows are read and merged: all values were seen, then steps are missing. Then tasks run again."""


def pack_on_ray(
    address: str,
    source: object,
    path: str | os.PathLike[str],
    options: PackOptions,
    progress: Progress,
    *,
    replace: bool,
) -> None:
    """Pack on the cluster at `address` ("ray": the one of this machine, or a new one)."""
    ray = connect(address)
    target = str(path) if is_url(path) else str(check_path(path).absolute())
    request = (_absolute(source), target, _one_cpu(options), replace)
    remote = ray.remote(num_cpus=1, max_retries=-1)(run_task)
    watch = ray.remote(num_cpus=0, max_retries=-1)(run_task)

    def ask(kind: str, given: Any = 0) -> Any:
        return result(ray, remote.remote(request, kind, given, view))

    def run(kind: str, numbers: Iterable[Any]) -> list[Any]:
        waiting = [remote.remote(request, kind, number, view) for number in numbers]
        refs, total, changed = list(waiting), max(len(waiting), 1), now_ns()
        while waiting:
            done, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=_POLL_S)
            share, changed = (total - len(waiting)) / total, now_ns() if done else changed
            if kind == "read" and waiting and now_ns() - changed >= _ASK_NS:
                share, changed = max(share, result(ray, watch.remote(request, "progress", 0, view))[0]), now_ns()
            progress(_PHASES[kind], share, 0)
        return [result(ray, ref) for ref in refs]

    pack = os.urandom(8).hex()
    for round_ in range(_ROUNDS):
        view = f"{pack}-{round_}"
        try:
            if round_ == 0 and not ask("is begun"):
                nodes = min(int(ray.cluster_resources().get("CPU", 1)), _MAX_INSPECTORS)
                found = run("inspect", [(i, nodes) for i in range(nodes)])
                ask("begin", {key: schema for part in found for key, schema in part.items()})
            while missing := ask("missing"):
                run("read", missing)
            run("merge", ask("ranges"))
            run("join", [0])
            return
        except PartsMissingError:  # the types changed
            if round_ + 1 == _ROUNDS:
                raise


_VIEWS: dict[str, PartedPack] = {}
"""What this process of the cluster knows of the pack that it works for: sources are listed, and results and cuts are read, once."""


def run_task(request: tuple[Any, ...], kind: str, given: Any, view: str) -> Any:
    """One task of a pack, in a process of the cluster. `view` names the pack and its types: what is known of it is kept."""
    if kind == "is begun":
        return is_begun(request[1], replace=request[3])
    if kind == "inspect":
        return inspect_sources(request[0], request[2], *given)
    if kind == "join" and finish_join(request[1]):  # by an earlier attempt, whose node died
        return None
    pack = _VIEWS.get(view)
    if pack is None:
        pack = _open(request, given if kind == "begin" else None)
        _VIEWS.clear()
        _VIEWS[view] = pack
    if kind == "missing":
        return pack.missing_tasks()
    if kind == "ranges":
        return pack.missing_ranges()
    if kind == "progress":
        return pack.progress()
    if kind == "read":
        pack.read(given)
    if kind == "merge":
        pack.merge(given)
    if kind == "join":
        pack.join()
    return None


def _open(request: tuple[Any, ...], known: Schemas | None) -> PartedPack:
    """The pack as this process sees it; with schemas, it may be the first one and write the plan."""
    source, target, options, can_replace = request
    begins = known is not None
    try:
        return PartedPack(source, target, options, quiet, may_write=begins, known=known, replace=can_replace)
    except OptionError as error:
        if not begins and "has no parts of a pack" in str(error):
            raise OptionError(
                f"a node of the cluster does not see {target}.parts, where tasks leave their results. Pack to a folder that all nodes "
                "share, or to a URL."
            ) from None
        raise


def _absolute(source: Any) -> Any:
    """Paths that mean the same in every process."""
    if isinstance(source, str | os.PathLike):
        return source if is_url(source) else str(Path(source).absolute())
    if isinstance(source, list | tuple) and source and all(isinstance(one, str | os.PathLike) for one in source):
        return [_absolute(one) for one in source]
    raise OptionError(
        "a table in memory cannot be packed in parts, as other processes do not see it. Give files or URLs, or leave out on=."
    )


def _one_cpu(options: PackOptions) -> PackOptions:
    return replace(options, threads=1)
