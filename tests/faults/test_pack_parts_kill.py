"""Packers of one pack in parts that are killed at random moments: what is left is finished by others, with the bytes of one pack."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.harness.zygote import Case, Zygote
from tests.store.pack.part_inputs import contents, small_tasks, write_events

from stoker.store.pack.api import join_parts, pack, pack_part

OPTIONS = {
    "keys": {"series": "user"},
    "sorted": {"series": "user", "time": "ts", "sort": True},
    "rules": {"series": "user", "time": "ts", "duplicates": "mean"},
}


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote(imports=("numpy", "pyarrow", "pyarrow.parquet", "stoker.store.pack.api", "stoker.store.pack.parts")) as started:
        yield started


def run_part(name: str, source: str, target: str, part: str, merge: bool) -> None:
    """What each packer does, in a process of its own."""
    small_tasks()
    if part == "join":
        join_parts(source, target, memory="192MB", threads=1, **OPTIONS[name])
    else:
        pack_part(source, target, part, merge=merge, memory="192MB", threads=1, **OPTIONS[name])


def kill_packers(zygote: Zygote, folder: Path, name: str, count: int, kills: int, rng: np.random.Generator) -> dict[str, int]:
    """Run `count` packers, four at a time. Each is killed `kills` times at random moments and started again: at most a quarter of these
    while it reads, and as often while it merges; then all are left to end, and the next pack begins. Joins are killed as well."""
    source = write_events(folder / "raw", files=3, rows=300)
    pack(source, folder / "one.stoker", **OPTIONS[name])
    expected = contents(folder / "one.stoker")
    start = time.monotonic()
    zygote.run(run_part, name=name, source=source, target=folder / "timed.stoker", part="1/1", merge=False).check()
    usual = longest = time.monotonic() - start
    left = [kills] * count
    killed = ended = rounds = joins = merges = 0
    quota = -(-kills // 4)
    while any(left) or not rounds:
        target, rounds = folder / f"{rounds}.stoker", rounds + 1
        for merge in (False, True):
            waiting, spent = list(range(count)), [0] * count
            while waiting:
                running: list[tuple[int, Case]] = []
                for number in waiting[:4]:
                    part = f"{number + 1}/{count}"
                    running.append(
                        (number, zygote.start(run_part, name=name, source=source, target=target, part=part, merge=merge))
                    )
                doomed = {number for number, _ in running if left[number] and spent[number] < quota}
                if doomed:
                    time.sleep(rng.uniform(0, usual))
                for number, case in running:
                    if number in doomed:
                        case.kill(signal.SIGKILL)
                for number, case in running:
                    outcome = case.wait()
                    assert outcome.exit == 0 or outcome.signal == signal.SIGKILL, outcome
                    killed += outcome.exit is None
                    left[number] -= outcome.exit is None
                    spent[number] += outcome.exit is None
                    merges += merge and outcome.exit is None
                    ended += outcome.exit == 0
                    # A packer whose tasks are done by now ends sooner: kill it sooner.
                    usual = min(max(usual * (1.1 if outcome.exit is None else 0.8), 0.02), longest)
                    if outcome.exit == 0:
                        waiting.remove(number)
        while True:
            case = zygote.start(run_part, name=name, source=source, target=target, part="join", merge=False)
            if rng.random() < 0.7:
                time.sleep(rng.uniform(0, usual))
                case.kill(signal.SIGKILL)
            outcome = case.wait()
            assert outcome.exit == 0 or outcome.signal == signal.SIGKILL, outcome
            joins += outcome.exit is None
            left_over = {path.name for path in Path(f"{target}.parts").rglob("*")}
            if outcome.exit == 0 or left_over <= {".stoker-parts"}:  # the last thing that a join does is to remove this folder
                break
        assert contents(target) == expected
        assert outcome.exit is None or not Path(f"{target}.parts").exists()
    return {"packers": count, "killed": killed, "of these merging": merges, "joins killed": joins, "ended": ended, "packs": rounds}


def test_some_packers_are_killed(zygote: Zygote, tmp_path: Path, rng: np.random.Generator) -> None:
    kill_packers(zygote, tmp_path, "sorted", 2, 1, rng)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("count", [1, 2, 3, 16])
def test_packers_are_killed_a_hundred_times_each(zygote: Zygote, tmp_path: Path, rng: np.random.Generator, count: int) -> None:
    kills, name = int(os.environ.get("STOKER_KILLS", "100")), list(OPTIONS)[count % len(OPTIONS)]
    found = kill_packers(zygote, tmp_path, name, count, kills, rng)
    assert found["killed"] >= kills * count
    if out := os.environ.get("STOKER_KILLS_OUT"):
        with Path(out).open("a") as file:
            file.write(json.dumps({"options": name, **found}) + "\n")
