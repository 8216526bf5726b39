"""`stoker gate`: the script runs unchanged, and the code says whether its steps grew."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.calling import Done, call, stoker_command

Stoker = Callable[..., Done]
WORDS = ("gate", "--budget", "budget.json")

SCRIPT = """
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset

print("hello from", __name__, sys.argv[1:])
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
other = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(1000, 8)), batch_size=10, shuffle=True)
if "short" in sys.argv:
    loader = list(loader)[:6]
if "fail" in sys.argv:
    raise ValueError("no\\ndata")

for (x,) in loader:
    optimizer.zero_grad()
    for part in x.split(5):
        loss = model(part).pow(2).mean() / 2
        loss.backward()
    optimizer.step()
    if "two" in sys.argv:
        other.step()
    if "slow" in sys.argv:
        print(loss.item())
torch.save(model.state_dict(), "model.pt")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


@pytest.fixture
def gate(stoker: Stoker) -> Stoker:
    """The command in this process; the script runs in one of its own anyway."""

    def call_gate(*words: str) -> Done:
        at = words.index("--") if "--" in words else len(words)
        return stoker(*WORDS, *words[:at], "train.py", *words[at:])

    return call_gate


@pytest.mark.promise("P22")
def test_a_budget_is_written_and_defended(gate: Stoker, folder: Path) -> None:
    done = call(stoker_command(*WORDS, "--write", "train.py", "--epochs", "1"), folder)  # as a user does
    assert (done.code, done.err) == (0, "hello from __main__ ['--epochs', '1']\n")
    assert done.out.startswith("wrote budget.json\nwithin the budget: ")
    assert done.out.splitlines()[-1].startswith("next: stoker gate --budget budget.json train.py --epochs 1 "), "with its arguments"
    done = gate("--quiet", "--", "slow")
    assert (done.code, done.err) == (1, "")
    lines = done.out.splitlines()
    assert lines[0] == "over the budget: 2 of the counts grew"
    assert "syncs: 1 per step, allowed 0" in lines
    assert "  +1 train.py <module>: print(loss.item()) (train.py:25)" in lines
    assert sorted(path.name for path in folder.iterdir()) == ["budget.json", "train.py"]


@pytest.mark.promise("P22")
@pytest.mark.slow
def test_a_budget_is_kept(gate: Stoker, folder: Path) -> None:
    done = call(stoker_command(*WORDS, "--write", "--json", "train.py"), folder)
    assert done.code == 0
    assert json.loads(done.out)["ok"] is True, "one document on stdout, and nothing else"
    assert done.err == "hello from __main__ []\n"
    done = call(stoker_command(*WORDS, "-q", "--json", "-m", "train", "--epochs", "1"), folder)
    assert done.code == 0
    assert json.loads(done.out)["growths"] == []


def _changes(folder: Path) -> dict[str, tuple[int, ...]]:
    """What a change of a file changes, by name: not the time of its last reading."""
    stats = {path.name: path.lstat() for path in folder.iterdir()}
    return {name: (stat.st_ino, stat.st_mode, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) for name, stat in stats.items()}


@pytest.mark.parametrize("words", [[], ["--write"]], ids=["read", "write"])
@pytest.mark.parametrize("kind", ["script", "folder", "pipe", "device", "link to a script", "link to itself", "text"])
def test_other_files_than_budgets_are_an_error_and_are_not_replaced(
    stoker: Stoker, folder: Path, kind: str, words: list[str]
) -> None:
    path = folder / "budget.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "text":
        path.write_text("notes")
    elif kind == "link to itself":
        path.symlink_to(path)
    elif kind == "link to a script":
        path.symlink_to(folder / "train.py")
    path = {"script": folder / "train.py", "folder": Path(), "device": Path("/dev/zero")}.get(kind, path)
    before = _changes(folder)
    done = stoker("gate", "--budget", path, *words, "train.py")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), done.err
    assert str(path) in done.err
    assert "hello" not in done.err, "it is checked before the script runs"
    assert _changes(folder) == before


@pytest.mark.parametrize("content", [None, '{"schema": 1}', "\xff"], ids=["none", "of no fields", "not UTF-8"])
def test_a_budget_that_cannot_be_used_is_answered_in_flags(stoker: Stoker, folder: Path, content: str | None) -> None:
    if content is not None:
        (folder / "budget.json").write_bytes(content.encode("latin-1"))
    done = stoker(*WORDS, "train.py")
    assert (done.code, done.out, "=True" in done.err) == (2, "", False)
    assert "--write" in done.err or content == "\xff"


def test_a_budget_behind_a_link_is_written_there(gate: Stoker, folder: Path) -> None:
    (folder / "budgets").mkdir()
    (folder / "budget.json").symlink_to("budgets/step.json")
    assert gate("--write", "-q").code == 0
    assert (folder / "budget.json").is_symlink()
    assert json.loads((folder / "budgets" / "step.json").read_text())["schema"] == 1
    assert gate("--write", "-q").code == 0, "a budget is replaced by a budget"


def test_a_launcher_is_an_error_that_says_what_to_run(stoker: Stoker, folder: Path) -> None:
    done = stoker(*WORDS, "-q", "torchrun", "--nproc-per-node", "2", "train.py", "--epochs", "1")
    assert done.code == 2
    assert done.err.endswith("Run: stoker gate --budget budget.json -q train.py --epochs 1\n")
