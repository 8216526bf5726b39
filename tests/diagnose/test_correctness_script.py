"""What is wrong with the batches of a program is found while it is diagnosed; of a clean program, nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.diagnose import programs

from stoker.diagnose import api
from stoker.diagnose.finding import text

pytestmark = pytest.mark.slow  # a process for each

FAULTS = {
    "repeated": "samples repeated: 20 of 320 rows",
    "missed": "samples missed: 50 of 300 samples never came",
    "mixed": "entries of different samples in a row: 300 of 300 rows",
    "shared": "batches that change after they were handed out: 29 batches changed",
    "workers": "samples repeated: 300 of 600 rows of epoch 0 came again: every sample came 2 times",
    "in order": "not shuffled: ",
    "not finite": "values that are not finite: '[0]' has 1 NaN",
    "leak": "validation data seen in training: 10 of 300 samples are in the validation data, too",
    "diverges": "losses that are not finite: ",
}


def wrong_with(program: Path, *words: str) -> list[str]:
    finding = api.diagnose_script(program, words, quiet=True, pace=0.05)
    wrong = finding.correctness
    assert finding.as_dict()["correctness"] == wrong
    assert all(sentence in text(finding) for sentence in wrong)
    return wrong


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(api, "CHECK_SECONDS", 400.0)  # 20 at this pace: enough on any machine, as it is over when all is read
    path = Path("train.py")
    path.write_text(programs.FAULTY)
    return path


@pytest.mark.promise("P20")
@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found(program: Path, fault: str) -> None:
    [found] = wrong_with(program, fault)
    assert found.startswith(FAULTS[fault])


@pytest.mark.promise("P20", control=True)
def test_negative_control_nothing_is_found_in_a_clean_program(program: Path) -> None:
    assert wrong_with(program, "none") == []


def test_how_long_batches_are_searched(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def run_child(sandbox: object, request: api.Request, kind: object, **options: object) -> api.Answer:
        asked.append(request.check_seconds)
        return api.Answer(error="enough")

    monkeypatch.setattr(api, "run_child", run_child)
    for seconds in (None, 1.0):
        with pytest.raises(Exception, match="enough"):
            api.diagnose_script(program, seconds=seconds)
    with pytest.raises(Exception, match="enough"):
        api.diagnose_script(program, pace=0.5)
    assert asked == [api.CHECK_SECONDS, 1.0, api.CHECK_SECONDS / 2]
