"""Traps: edits of a training program whose right answer is known by construction."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.compare import apart
from tests.compare.frameworks import TRAPS as FRAMEWORKS
from tests.compare.frameworks import framework_program
from tests.compare.traps import BEFORE, TRAPS, Trap, edited

from stoker.compare.engine import judge
from stoker.compare.observed import Observed
from stoker.compare.rounds import Pairs
from stoker.compare.sides import Version, prepared

Run = Callable[..., Observed]
FEW = (
    "the same program",
    "fused optimizer",
    "bfloat16",
    "fewer samples per epoch",
    "evaluation mode",
    "data leaked",
    "a smaller model",
)
"""Traps of the quick tests; the others are slow."""


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run a program to its end, once for each text."""
    folder = tmp_path_factory.mktemp("traps")
    known: dict[tuple[str, tuple[tuple[str, object], ...]], Observed] = {}

    def observed(text: str, **options: object) -> Observed:
        key = (text, tuple(options.items()))
        if key not in known:
            path = Path(folder, f"train{len(known)}.py")
            path.write_text(text)
            with prepared(Version(program=str(path), environment={"OMP_NUM_THREADS": "1"})) as side:
                known[key] = side.run([], time_limit=200, **options)
        return known[key]

    return observed


def check(run: Run, program: str, text: str, trap: Trap) -> None:
    """Compare a program with its edited text, and check the answer."""
    before = run(program, whole=True, observe=True)
    after = run(text, whole=True, observe=True)
    yardsticks = [] if before.losses == after.losses else [run(program, steps=len(before.ends), perturb=True).losses]
    receipt = judge(before, after, yardsticks, Pairs(), tolerance=trap.tolerance)
    different = {fact.name for fact in receipt.facts if fact.same is False}
    assert (receipt.losses.verdict, receipt.status) == (trap.verdict, trap.status), str(receipt)
    assert trap.facts <= different, str(receipt)
    if trap.status == 3:
        assert not different, str(receipt)


@pytest.mark.promise("P34")
@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in FEW else pytest.mark.slow) for name in TRAPS])
def test_the_right_answer(name: str, run: Run) -> None:
    check(run, BEFORE, edited(name), TRAPS[name])


@pytest.mark.slow
@pytest.mark.promise("P34")
@pytest.mark.parametrize("name", apart.TRAPS)
def test_traps_that_were_kept_apart(name: str, run: Run) -> None:
    check(run, apart.BEFORE, edited(name, apart.BEFORE, apart.TRAPS), apart.TRAPS[name])


@pytest.mark.slow
@pytest.mark.promise("P34")
@pytest.mark.parametrize(("framework", "name"), [(framework, name) for framework, traps in FRAMEWORKS.items() for name in traps])
def test_programs_of_frameworks(framework: str, name: str, run: Run) -> None:
    check(run, framework_program(framework), framework_program(framework, name), FRAMEWORKS[framework][name])
