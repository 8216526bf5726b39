"""`stoker diagnose`: the command around a finding. What is found, and how, is tested in tests/diagnose."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.cli.calling import Done, call, stoker_command
from tests.diagnose.findings import ALL, on_gpu, with_texts, without_verdict
from tests.diagnose.test_finding import IN_A_PIPE

from stoker.diagnose.finding import Finding
from stoker.diagnose.measurements import Patch
from stoker.diagnose.thresholds import RULE

Stoker = Callable[..., Done]
SCRIPT = "stoker.diagnose.api"


class Diagnosed:
    """What the command asked for, in place of a run; it gives a finding that was made up."""

    def __init__(self) -> None:
        self.finding: Finding = on_gpu()
        self.arguments: tuple[Any, ...] = ()
        self.options: dict[str, Any] = {}

    def __call__(self, *arguments: Any, **options: Any) -> Finding:
        self.arguments, self.options = arguments, options
        return self.finding


@pytest.fixture
def diagnosed(monkeypatch: pytest.MonkeyPatch) -> Diagnosed:
    stand_in = Diagnosed()
    monkeypatch.setattr(importlib.import_module(SCRIPT), "diagnose_script", stand_in)
    return stand_in


def test_thresholds_are_printed_without_a_script(stoker: Stoker) -> None:
    done = stoker("diagnose", "--thresholds")
    assert (done.code, done.err) == (0, "")
    assert [line.split()[:2] for line in done.out.splitlines()] == [[name, value] for name, value, _ in RULE.table()]


def test_a_verdict_is_shown_and_ends_with_0(stoker: Stoker, diagnosed: Diagnosed) -> None:
    done = stoker("diagnose", "train.py", "--epochs", "1", "--debug")
    assert (done.code, done.err) == (0, "")
    assert "".join(f"{line.rstrip()}\n" for line in done.out.splitlines()) == IN_A_PIPE
    assert diagnosed.arguments == ("train.py", ("--epochs", "1", "--debug"))
    assert diagnosed.options == {"module": False, "quiet": False, "seconds": None, "time_limit": 90.0, "with_compile": False}


def test_what_is_proposed_is_tried_on_request(stoker: Stoker, diagnosed: Diagnosed, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def try_advice(finding: Finding, *arguments: Any, tell: Callable[[str], None], **options: Any) -> Finding:
        asked.append((arguments, options))
        tell("trying \x1b[31mfused")
        return with_texts(finding, "tried")

    monkeypatch.setattr("stoker.diagnose.trials.try_advice", try_advice)
    done = stoker("diagnose", "-m", "--try", "train", "--", "a")
    assert asked == [(("train", ("a",)), {"module": True, "quiet": True, "at_most": None})]
    assert done.err == "stoker: trying \\x1b[31mfused\n"
    assert "predicted 2.23x" in done.out
    assert stoker("diagnose", "--try", "--quiet", "--json", "train.py").err == ""
    stoker("diagnose", "train.py")
    assert len(asked) == 2


def test_a_patch_is_made_on_request(stoker: Stoker, diagnosed: Diagnosed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Any] = []

    def offer_patch(finding: Finding, *arguments: Any, tell: Callable[[str], None], **options: Any) -> Finding:
        asked.append((arguments, options))
        tell("measuring the baseline")
        return msgspec.structs.replace(finding, patch=Patch(left_out={"fused": "no gain\x1b"}))

    monkeypatch.setattr("stoker.diagnose.patches.offer_patch", offer_patch)
    done = stoker("diagnose", "-m", "--apply", tmp_path / "a.patch", "--budget", "30", "train", "a")
    assert asked == [(("train", ("a",)), {"path": tmp_path / "a.patch", "module": True, "quiet": True, "at_most": 30.0})]
    assert done.err == "stoker: measuring the baseline\n"
    assert "PATCH    none was written\n         without fused: no gain\\x1b\n" in done.out
    assert done.code == 3
    found = json.loads(stoker("diagnose", "--apply", tmp_path / "a.diff", "--json", "--quiet", "train.py").out)
    assert found["patch"]["left_out"] == {"fused": "no gain\x1b"}


def test_only_a_patch_that_was_written_is_success(
    stoker: Stoker, diagnosed: Diagnosed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    patches = iter([Patch(file="a.patch", fixes=["fused"]), Patch(why="no fix is advised")])
    monkeypatch.setattr(
        "stoker.diagnose.patches.offer_patch",
        lambda finding, *arguments, **options: msgspec.structs.replace(finding, patch=next(patches)),
    )
    assert [stoker("diagnose", "--apply", tmp_path / "a.patch", "train.py").code for _ in range(2)] == [0, 3]
    assert stoker("diagnose", "train.py").code == 0, "without --apply a verdict is enough"


def test_no_verdict_ends_with_3(stoker: Stoker, diagnosed: Diagnosed) -> None:
    diagnosed.finding = without_verdict()
    done = stoker("diagnose", "train.py")
    assert done.code == 3
    assert done.out.startswith("VERDICT  NO VERDICT: only 5 steps were seen")
    done = stoker("diagnose", "--json", "train.py")
    assert done.code == 3
    assert json.loads(done.out)["verdict"] == "none"


@pytest.mark.promise("P21")
@pytest.mark.parametrize("name", ALL)
def test_json_stands_alone_on_stdout_and_is_json(stoker: Stoker, diagnosed: Diagnosed, name: str) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    diagnosed.finding = with_texts(ALL[name](), "\x1b[31m\ud800\u2028é")
    done = stoker("diagnose", "--json", "train.py")
    assert done.out.isascii()
    assert done.out.count("\n") == 1
    found = json.loads(done.out, parse_constant=refuse)
    assert found["schema"] == 1
    assert found["why"] == "\x1b[31m\ud800\u2028é"
    assert {"verdict", "second", "why", "causes", "next"} <= set(found)


def test_a_number_that_json_does_not_have_is_null(stoker: Stoker, diagnosed: Diagnosed) -> None:
    assert json.loads(stoker("diagnose", "--json", "train.py").out)["next"][2]["tried"]["speedup"] is None
    diagnosed.finding = without_verdict()
    assert json.loads(stoker("diagnose", "--json", "train.py").out)["spread"] is None


@pytest.mark.parametrize("words", [["--budget", "3"], ["--try=1"], ["-v"], ["config/a.py", "--compile=False", "--seed", "1"]])
def test_all_after_the_script_belongs_to_it(stoker: Stoker, diagnosed: Diagnosed, words: list[str]) -> None:
    done = stoker("diagnose", "train.py", *words)
    assert diagnosed.arguments == ("train.py", tuple(words))
    ours = words[0].partition("=")[0]
    stray = f"stoker: {ours} after train.py is an argument of the script; options of stoker diagnose come before train.py\n"
    assert (stray in done.err) == (ours in ("--budget", "--try"))
    assert stoker("diagnose", "-q", "train.py", "--", *words).err == "", "a user who writes -- knows"
    assert diagnosed.arguments == ("train.py", tuple(words))


def test_a_report_is_written_beside_what_is_shown(stoker: Stoker, diagnosed: Diagnosed, tmp_path: Path) -> None:
    path = tmp_path / "why.html"
    done = stoker("diagnose", "-m", "--json", "--report", path, "package.train", "--name", "a b")
    assert json.loads(done.out)["verdict"] == "data"
    assert done.err == ""
    assert stoker("diagnose", "--report", path, "train.py", "x").err == f"stoker: the report is {path}\n"
    assert stoker("diagnose", "-m", "--report", path, "-q", "package.train", "--name", "a b").err == ""
    assert "<title>data-bound - -m package.train --name &#39;a b&#39;</title>" in path.read_text()


TRAINING = """
import sys
import torch

print("hello", sys.argv[1:])
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = [torch.randn(16, 8) for _ in range(4)]
for _ in range(int(sys.argv[1])):
    for batch in batches:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_script_is_run_as_it_is_and_its_words_stay_off_stdout(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    done = call(stoker_command("diagnose", "--json", "train.py", "20"), tmp_path)
    found = json.loads(done.out)
    assert done.code == (3 if found["verdict"] == "none" else 0)  # which one depends on how quiet the machine is
    assert found["measurements"]["steps_seen"] > 20
    assert done.err.startswith("hello ['20']")
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
