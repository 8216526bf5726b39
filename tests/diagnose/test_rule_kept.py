"""Verdicts of what was once measured: programs of the suite with a known cause, on two cores, alone or beside noisy neighbours,
and on an H200.

The files of `kept` are those of `verdicts.run --keep`, thinned out: a change of the rule is tested without a clock.
"""

from __future__ import annotations

import msgspec
import pytest
from tests.diagnose.strategies import NAMES, kept
from verdicts.ablations import accepted_causes
from verdicts.table import PROGRAMS

from stoker.diagnose.division import crowded
from stoker.diagnose.measurements import Stretch
from stoker.diagnose.rule import conclude

BY_NAME = {program.name: program for program in PROGRAMS}


def test_there_is_one_of_each_cause_of_a_cpu() -> None:
    verdicts = {BY_NAME[name].verdict for name in NAMES}
    assert {"data", "host", "optimizer", "compute", "memory", "dispatch", "oversubscribed", "none"} <= verdicts


def test_there_are_programs_of_a_gpu() -> None:
    verdicts = {BY_NAME[name].verdict for name in NAMES if BY_NAME[name].device == "cuda"}
    assert {"data", "host", "launch", "optimizer", "precision", "compute", "memory", "kernel", "transfer"} <= verdicts


@pytest.mark.parametrize("name", NAMES)
def test_a_program_gets_the_verdict_that_was_put_in(name: str) -> None:
    program, finding = BY_NAME[name], conclude(kept(name))
    assert finding.verdict in (accepted_causes(program)), finding.why
    if program.second is not None:
        assert finding.second is not None
        assert finding.second.verdict == program.second


@pytest.mark.parametrize("name", [name for name in NAMES if BY_NAME[name].verdict != "none"])
def test_the_same_program_beside_others_or_after_a_few_steps_gets_none(name: str) -> None:
    of_program = kept(name)
    few = msgspec.structs.replace(of_program, loop=Stretch(seconds=of_program.loop.seconds[:5]))
    assert conclude(few).verdict == "none"
    # A crowd is in its own way, as is a thread that holds the interpreter lock, and a GPU that is behind does not mind who has the cores.
    if not crowded(of_program) and of_program.busy_thread is None and BY_NAME[name].device == "cpu":
        beside = msgspec.structs.replace(of_program, waited_for_cores=0.2)
        assert conclude(beside).verdict == "none"
