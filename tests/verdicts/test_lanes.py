"""Lanes of the suite of verdicts: whose cores are whose, and which programs run where."""

from __future__ import annotations

import os
import time

from verdicts.lanes import Deadline, Lane, make_lanes, side_by_side, usable_cores
from verdicts.table import PROGRAMS

CPU = [program for program in PROGRAMS if program.device == "cpu"][:4]
CUDA = [program for program in PROGRAMS if program.device == "cuda"][:2]


def test_no_core_is_in_two_lanes_and_the_gpu_has_one_of_its_own() -> None:
    lanes = make_lanes(6, range(16), gpu=1)
    assert [sorted(lane.cores) for lane in lanes] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11], [12, 13, 14, 15]]
    assert [lane.devices for lane in lanes] == [frozenset(("cpu",))] * 6 + [frozenset(("cuda",))]
    two = make_lanes(5, range(16), gpu=2)[5:]
    assert [sorted(lane.cores) for lane in two] == [[10, 11, 12], [13, 14, 15]]


def test_each_program_runs_once_on_the_cores_of_a_lane_of_its_device() -> None:
    cores = usable_cores()
    lanes = [
        Lane(cores=frozenset(cores[:1]), devices=frozenset(("cpu",))),
        Lane(cores=frozenset(cores[-1:]), devices=frozenset(("cuda",))),
    ]
    before = os.sched_getaffinity(0)
    found = {
        program.name: row["cores"]
        for program, row in side_by_side(lanes, [*CPU, *CUDA], lambda program: {"cores": os.sched_getaffinity(0)})
    }
    assert found == {**{one.name: {cores[0]} for one in CPU}, **{one.name: {cores[-1]} for one in CUDA}}
    assert os.sched_getaffinity(0) == before


def test_a_deadline_starts_no_job_that_would_end_too_late_and_long_jobs_go_first() -> None:
    short, long, unknown = CPU[:3]
    times = {short.name: 5.0, long.name: 100.0}
    deadline = Deadline(seconds=times, usual=20.0, end=time.monotonic() + 50.0)
    ordered = deadline.longest_first([short, unknown, long])
    assert [one.name for one in ordered] == [long.name, unknown.name, short.name]
    ran = [
        job.name for job, _ in side_by_side(make_lanes(0, usable_cores(), gpu=0), ordered, lambda _: {}, may_start=deadline.allows)
    ]
    assert ran == [unknown.name, short.name]
    assert Deadline(usual=1e9).allows(long)  # without an end all may start
