"""Trials: each advice gets its result, and a fix is switched on in a running program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from tests.diagnose.fake_engine import LOSSES, FakeEngine, Result
from tests.diagnose.findings import on_gpu
from tests.diagnose.measured import on_cpu
from torch import nn

from stoker.compare.engine import Comparisons
from stoker.compare.sides import Version, prepared
from stoker.diagnose import wording
from stoker.diagnose.advice import value_of
from stoker.diagnose.experiments.compile import Compile
from stoker.diagnose.measurements import Advice
from stoker.diagnose.trials import FixOptions, try_advice
from stoker.errors import TrainError

CHANGED = [0.9 * loss for loss in LOSSES]


def test_modules_with_weights_are_compiled_and_their_hooks_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []

    def pretend(function: Any, mode: str | None = None) -> Any:
        compiled.append((function, mode))
        return function

    monkeypatch.setattr(torch, "compile", pretend)
    model = nn.Linear(3, 2)
    Compile().begin([model, nn.MSELoss()], None)
    assert compiled == [(nn.Linear.forward.__get__(model), None)]
    Compile(1).begin([nn.Linear(3, 2)], None)
    assert compiled[1][1] == "reduce-overhead"
    frozen = Compile()
    frozen.begin([nn.MSELoss()], None)
    assert not frozen.used


# ---- what a finding gets ----


def test_fixes_are_tried_with_the_number_that_is_advised() -> None:
    measured = on_cpu(fewer_threads={"1": 0.003, "2": 0.0098})
    assert value_of("threads", measured, "oversubscribed") == 1
    assert value_of("threads", on_cpu(), "data") == 2
    assert value_of("workers", measured, "data") == 1
    assert (value_of("compile", measured, "launch"), value_of("compile", measured, "memory")) == (1, None)


def test_a_finding_gets_the_results_of_its_advice() -> None:
    names = ["feed", "cached", "host", "workers"]
    finding = msgspec.structs.replace(
        on_gpu(), next=[Advice(name=name, sentence=name, predicted=2.0) for name in names], verdict="memory"
    )
    results: dict[str, Result] = {
        "feed": 0.005, "cached": {"seconds": 0.004, "losses": CHANGED}, "workers": {"losses": CHANGED},
    }  # fmt: skip
    engine = FakeEngine(lambda version: results[version.title.removeprefix("with ")])
    after = try_advice(finding, __file__, engine=engine)  # type: ignore[arg-type]
    assert engine.compared == [f"with {name}" for name in ("feed", "cached", "workers")]
    by_name = {step.name: step for step in after.next}
    assert by_name["host"].tried is None
    tried = {name: step.tried for name, step in by_name.items() if step.tried is not None}
    assert tried["feed"].speedup == pytest.approx(2.0)
    assert (tried["feed"].losses, tried["feed"].peak_bytes, tried["cached"].losses) == ("equal", 1000, "not compared")
    assert "FASTER with equal results" in tried["feed"].receipt
    assert tried["workers"].losses == "changed"
    for name in ("cached", "feed"):  # the trial did something else than the advice says
        assert by_name[name].sentence == name + wording.TRIED_AS[name]
    assert by_name["workers"].sentence == "workers"


@pytest.mark.parametrize(
    ("result", "error", "words"),
    [
        ({"error": "with fused raised ValueError."}, "with fused raised ValueError", "could not be tried: with fused"),
        ({"seconds": 0.005, "pairs": 3}, None, "tried 2.00x in too few runs for an interval"),
        ({"losses": [loss * (1 + 2e-7) for loss in LOSSES]}, None, "tried 1.00x (1.00-1.00)   losses equal to 2e-07"),
    ],
)
def test_what_a_trial_says_in_a_few_words(result: Result, error: str | None, words: str) -> None:
    finding = msgspec.structs.replace(on_gpu(), verdict="optimizer", next=[Advice(name="fused", sentence="fused", predicted=2.0)])
    tried = try_advice(finding, __file__, engine=FakeEngine(lambda version: result)).next[0].tried  # type: ignore[arg-type]
    assert tried is not None
    assert tried.error == error
    assert wording.outcome(tried).startswith(words)


def test_after_its_time_nothing_is_tried() -> None:
    finding = msgspec.structs.replace(on_gpu(), verdict="optimizer", next=[Advice(name="fused", sentence="fused", predicted=2.0)])
    engine = FakeEngine(lambda version: 0.005)
    tried = try_advice(finding, __file__, at_most=1e-9, engine=engine).next[0].tried  # type: ignore[arg-type]
    assert tried is not None
    assert (tried.error, engine.compared) == (wording.TRIAL["no_time"], [])


def test_without_measurements_nothing_is_tried() -> None:
    finding = msgspec.structs.replace(on_gpu(), measurements=None)
    assert try_advice(finding, __file__, engine=pytest.fail) is finding  # type: ignore[arg-type]


@pytest.mark.promise("P17")
@pytest.mark.parametrize(("tried_ms", "told"), [(10.0, False), (10.5, False), (12.0, True), (8.0, True)])
def test_a_machine_that_has_changed_its_speed_since_is_reported(tried_ms: float, told: bool) -> None:
    measured = on_cpu()
    base = measured.loop.median * tried_ms / 10
    finding = msgspec.structs.replace(
        on_gpu(), measurements=measured, verdict="optimizer", next=[Advice(name="fused", sentence="fused", predicted=2.0)]
    )
    after = try_advice(finding, __file__, engine=FakeEngine(lambda version: base / 2, base=base))  # type: ignore[arg-type]
    assert after.next[0].tried is not None
    assert after.next[0].tried.step_seconds == pytest.approx(base)
    notes = after.measurements.notes if after.measurements is not None else []
    assert any("when fixes were tried" in note for note in notes) == told


# ---- processes ----

PROGRAM = """
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for _ in range(1000):
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    torch.save(model.state_dict(), "model.pt")
"""


def version_of(program: Path, name: str) -> Version:
    options = msgspec.json.encode(FixOptions(fix=name)).decode()
    return Version(program=str(program), extension="stoker.diagnose.trials:ProgramWithFix", options=options)


@pytest.mark.slow  # processes that import torch
@pytest.mark.parametrize(
    ("name", "verdict"), [("feed", "equal"), ("cached", "changed"), ("batch", "changed"), ("autocast", "changed")]
)
def test_a_fix_is_switched_on_in_the_program(name: str, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    with Comparisons(Version(program=str(program)), steps=40, same_draws=True) as comparisons:
        receipt = comparisons.compare(version_of(program, name), budget=0)
    assert receipt.losses.verdict == verdict
    assert (receipt.losses.first or 10) > 3, "the loop runs for some steps as it is"
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_a_fix_that_changes_nothing_is_an_error(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM.replace("DataLoader(data, batch_size=8, shuffle=True)", "[data[:8]] * 8"))
    with prepared(version_of(program, "workers")) as side, pytest.raises(TrainError, match="the program makes no DataLoader"):
        side.run([], steps=20)
