"""`stoker compare`: which versions are compared, what is printed, and the exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.calling import Done
from tests.compare.traps import BEFORE, edited

Stoker = Callable[..., Done]
QUICK = ("compare", "--budget", "0", "--steps", "20")


@pytest.fixture(autouse=True)
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name, text in (("old", BEFORE), ("fused", edited("fused optimizer")), ("changed", edited("bfloat16"))):
        Path(f"{name}.py").write_text(text)


def test_the_exit_code_says_whether_results_changed(stoker: Stoker) -> None:
    done = stoker(*QUICK, "old.py", "changed.py")
    assert done.code == 4
    assert done.out.startswith("CHANGED: beyond rounding")
    done = stoker(*QUICK, "--require", "loss=rounding", "old.py", "fused.py")
    assert done.code == 0, done.out + done.err
    assert "loss=rounding holds" in done.out


@pytest.mark.slow
def test_json_is_a_receipt_that_can_be_checked(stoker: Stoker) -> None:
    done = stoker(*QUICK, "--json", "old.py", "fused.py", "--argument", "1")
    receipt = json.loads(done.out)
    assert (done.code, receipt["status"], receipt["losses"]["verdict"]) == (3, 3, "rounding")
    assert receipt["call"]["arguments"] == ["--argument", "1"]
    Path("receipt.json").write_text(done.out)
    assert stoker("compare", "--check", "receipt.json").code == 0
    Path("fused.py").write_text(edited("bfloat16"))
    done = stoker("compare", "--check", "receipt.json", "--json", "brief")
    assert done.code == 1
    assert len(done.out) <= 3000
    assert any("the code of AFTER" in line for line in json.loads(done.out)["differs"])


@pytest.mark.slow
def test_one_script_in_two_environments(stoker: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LR", "0.1")
    Path("train.py").write_text(BEFORE.replace("lr=3e-3", "lr=float(__import__('os').environ['LR'])"))
    done = stoker(*QUICK, "--env-after", "LR=0.1", "--markdown", "--report", "page.html", "train.py")
    assert done.code == 3, done.err
    assert "| losses | bit-equal over 20 steps |" in done.out
    assert Path("page.html").read_text().startswith("<!doctype html>")
    assert stoker(*QUICK, "--env-after", "LR=0.2", "train.py").code == 4


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([], "no script was given"),
        (["old.py"], "nothing to be compared with"),
        (["old.py", "--lr", "1"], "nothing to be compared with"),
        (["gone.py", "old.py"], "gone.py"),
        (["--check", "gone.json"], "gone.json"),
        (["--check", "gone.json", "old.py"], "--check"),
        (["--until", "soon", "old.py", "old.py"], "90s, 10min or 2h"),
        (["--until", "1s", "--steps", "9", "old.py", "old.py"], "expected one of them"),
        (["--env-after", "LR", "old.py"], "NAME=VALUE"),
        (["--require", "fast", "old.py", "old.py"], "fast"),
        (["--report", "page.txt", "old.py", "old.py"], ".html"),
    ],
)
def test_wrong_words_are_an_error_with_a_line(stoker: Stoker, words: list[str], part: str) -> None:
    done = stoker("compare", *words)
    assert done.code == 2
    assert part in done.err
    assert "Traceback" not in done.err
