"""Comparisons as a whole, from simulated or real runs."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.compare.observations import observed
from tests.compare.traps import BEFORE, edited

import stoker
from stoker.compare.api import compare_again
from stoker.compare.engine import Comparisons, judge
from stoker.compare.observed import Observed
from stoker.compare.rounds import Pairs
from stoker.compare.sides import Version
from stoker.errors import OptionError, TrainError


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("step", "first", "title"),
    [(0.005, 1.0, "FASTER with equal results"), (0.02, 1.0, "SLOWER"), (0.01, 0.1, "NO DIFFERENCE"), (0.01, 9.0, "NO DIFFERENCE")],
)
def test_only_steps_after_the_start_count_as_speed(step: float, first: float, title: str) -> None:
    timed = Pairs([observed() for _ in range(8)], [observed(step, first) for _ in range(8)])
    assert judge(observed(), observed(step, first), [], timed).verdict.title.startswith(title)


def test_a_warm_up_in_the_first_half_is_no_slower_step() -> None:
    def warmed(slow: float) -> list[object]:
        run = observed()
        ends = [end + slow * min(number, 10) for number, end in enumerate(run.ends)]
        return [observed(ends=ends, middle=ends[19], end=ends[-1]) for _ in range(8)]

    assert judge(observed(), observed(), [], Pairs(warmed(0.0), warmed(0.5))).verdict.title.startswith("NO DIFFERENCE")  # type: ignore[arg-type]


def test_two_scripts_are_compared_and_the_receipt_holds_again(tmp_path: Path) -> None:
    before, after = written(tmp_path, "old.py", BEFORE), written(tmp_path, "new.py", edited("fused optimizer"))
    kept = sorted(tmp_path.iterdir())
    receipt = stoker.compare(before, after, budget=0)
    assert (receipt.status, receipt.losses.verdict, receipt.speed) == (3, "rounding", None)
    assert sorted(tmp_path.iterdir()) == kept
    assert [len(run.code) for run in (receipt.before, receipt.after)] == [1, 1]
    assert compare_again(receipt)[1] == []
    after.write_text(edited("bfloat16"))
    wrong = compare_again(receipt)[1]
    assert len(wrong) == 3, wrong


class PlayedSide:
    """A version whose runs are known: steps of `seconds`, in as many as are asked for."""

    changes_packages = False

    def __init__(self, version: Version, seconds: dict[str, float], asked: list[dict[str, Any]]) -> None:
        self.version, self._seconds, self._asked = version, seconds, asked

    def run(self, arguments: list[str], *, quiet: bool, time_limit: float | None, **options: Any) -> Observed:
        self._asked.append({"title": self.version.title, **options})
        return observed(self._seconds[self.version.title])


def played(monkeypatch: pytest.MonkeyPatch, **seconds: float) -> tuple[Comparisons, dict[str, Version], list[dict[str, Any]]]:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(
        sys.modules[Comparisons.__module__],
        "prepared",
        lambda version, confined=None: nullcontext(PlayedSide(version, seconds, asked)),
    )
    versions = {name: Version(program=__file__, title=name) for name in seconds}
    return Comparisons(next(iter(versions.values()))), versions, asked


def test_each_version_is_compared_with_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    comparisons, versions, asked = played(monkeypatch, slow=0.02, middle=0.01, fast=0.005)
    with comparisons:
        first = comparisons.compare(versions["middle"])
        assert (first.status, round(first.speed.speedup, 3) if first.speed else None) == (0, 2.0)
        comparisons.accept()
        second = comparisons.compare(versions["fast"])
        assert (second.names, round(second.speed.speedup, 3) if second.speed else None) == (("middle", "fast"), 2.0)
        refused = comparisons.compare(versions["slow"], screen=True)
        assert (refused.status, refused.speed.pairs if refused.speed else None) == (3, 3)
    assert comparisons.best is versions["middle"]
    assert [run["title"] for run in asked if run.get("observe")] == ["slow", "middle", "fast", "slow"], "BEFORE is observed once"


def test_negative_control_a_version_that_was_not_compared_is_not_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    comparisons, _, _ = played(monkeypatch, slow=0.02)
    with comparisons, pytest.raises(TrainError, match="no comparison has succeeded"):
        comparisons.accept()


@pytest.mark.parametrize(("seconds", "steps"), [(1000.0, range(40, 41)), (85.0, range(21, 38)), (1.0, range(20, 21))])
def test_runs_are_short_enough_for_all_rounds(seconds: float, steps: range, monkeypatch: pytest.MonkeyPatch) -> None:
    comparisons, versions, asked = played(monkeypatch, old=0.05, new=0.05)
    with comparisons:
        comparisons.compare(versions["new"], budget=seconds)
    timed = [run["steps"] for run in asked if "observe" not in run][1:]  # the first one is a warm-up
    assert timed, asked
    assert set(timed) <= set(steps)


@pytest.mark.parametrize(
    ("changes", "packages", "forks"), [({}, False, True), ({"variables": ["OMP_NUM_THREADS"]}, False, False), ({}, True, False)]
)
def test_programs_that_shared_imports_would_change_are_timed_in_fresh_interpreters(
    changes: dict[str, Any], packages: bool, forks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PlayedSide, "changes_packages", packages)
    comparisons, versions, asked = played(monkeypatch, old=0.05, new=0.05)
    original = PlayedSide.run
    monkeypatch.setattr(
        PlayedSide,
        "run",
        lambda side, arguments, **options: msgspec.structs.replace(original(side, arguments, **options), **changes),
    )
    with comparisons:
        comparisons.compare(versions["new"], budget=1.0)
    assert {run["starter"] is not None for run in asked if "observe" not in run} == {forks}


def test_programs_whose_forks_cannot_use_the_gpu_are_timed_in_fresh_interpreters(monkeypatch: pytest.MonkeyPatch) -> None:
    comparisons, versions, asked = played(monkeypatch, old=0.05, new=0.05)
    original = PlayedSide.run

    def run(side: PlayedSide, arguments: Any, **options: Any) -> Observed:
        device = "cuda" if options.get("starter") is None else "cpu"
        return msgspec.structs.replace(original(side, arguments, **options), device=device)

    monkeypatch.setattr(PlayedSide, "run", run)
    with comparisons:
        comparisons.compare(versions["new"], budget=1.0)
    assert [run["starter"] is not None for run in asked if "observe" not in run][:3] == [True, False, False], "the warm-up alone"


METRIC = r"validation ([0-9.]+)"


@pytest.mark.slow
def test_a_lucky_seed_has_no_effect_on_other_seeds(tmp_path: Path) -> None:
    before, lucky = written(tmp_path, "old.py", BEFORE), written(tmp_path, "lucky.py", edited("a changed seed"))
    quality = stoker.compare(before, lucky, budget=0, seeds=2, metric=METRIC).quality
    assert quality is not None
    assert (quality.pairs, quality.shared, quality.verdict) == (2, 0, "unknown")


@pytest.mark.slow
def test_an_edited_evaluator_is_reported(tmp_path: Path) -> None:
    before = written(tmp_path, "old.py", BEFORE)
    edit = written(tmp_path, "new.py", BEFORE.replace('("validation", metric', '("validation", 0.5 * metric'))
    receipt = stoker.compare(before, edit, budget=0, seeds=2, metric=METRIC)
    assert (receipt.losses.verdict, receipt.status) == ("equal", 4)


@pytest.mark.slow
def test_repeats_of_a_program_that_ignores_its_seed_count_once(tmp_path: Path) -> None:
    text = BEFORE.replace("torch.manual_seed(0)", "torch.default_generator.manual_seed(0)").replace(", shuffle=True", "")
    fixed = written(tmp_path, "old.py", text.replace("torch.Generator().manual_seed(1)", "torch.default_generator"))
    quality = stoker.compare(fixed, fixed, budget=0, seeds=2, metric=METRIC).quality
    assert quality is not None
    assert (quality.pairs, quality.shared) == (1, 1)


@pytest.mark.slow
def test_a_program_that_sleeps_less_is_faster(tmp_path: Path) -> None:
    sleeping = BEFORE.replace("        step += 1\n", "        step += 1\n        time.sleep(0.06)\n")
    before = written(tmp_path, "old.py", sleeping)
    receipt = stoker.compare(
        before, written(tmp_path, "new.py", sleeping.replace("0.06", "0.01")), budget=1000, width=0.5, steps=20
    )
    assert receipt.status == 0, str(receipt)


def test_a_version_that_fails_is_an_error_with_its_line(tmp_path: Path) -> None:
    before = written(tmp_path, "old.py", BEFORE)
    broken = written(tmp_path, "new.py", BEFORE.replace("step = 0\n", "step = 0\nraise ValueError('out of luck')\n"))
    with pytest.raises(TrainError, match=r"new\.py raised ValueError \(new\.py:18\): out of luck"):
        stoker.compare(before, broken, budget=0, steps=8)
    with pytest.raises(TrainError, match="no optimizer step"):
        stoker.compare(written(tmp_path, "none.py", "print(1)"), before, budget=0)


@pytest.mark.parametrize(
    "options", [{"steps": 2}, {"seeds": 1}, {"budget": -1}, {"tolerance": 0}, {"metric": "a (b)"}, {"require": "fast"}]
)
def test_wrong_options_are_refused_before_anything_runs(tmp_path: Path, options: dict[str, object]) -> None:
    path = written(tmp_path, "train.py", "raise SystemExit(9)")
    with pytest.raises(OptionError) as error:
        stoker.compare(path, path, **options)  # type: ignore[arg-type]
    assert error.value.parameter == next(iter(options))
