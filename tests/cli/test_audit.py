"""`stoker audit`: runs a script up to its batches, and says what is wrong with them."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.calling import Done, call, stoker_command
from tests.diagnose.test_audit_script import PLAIN, TRAINING

from stoker.cli import main

Stoker = Callable[..., Done]

SCRIPT = """
import sys
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset
from series import make_series

print("hello from", __name__, sys.argv[1:])
x, y = make_series()
dataset = TensorDataset(x, y)
train_loader = DataLoader(Subset(dataset, range(150)), batch_size=10, shuffle=True)
valid = Subset(dataset, range(140, 200))

def clean():
    return DataLoader(dataset, batch_size=10, shuffle=True)

def mixed():
    for i in range(0, 200, 10):
        yield {"x": x[i:i + 10], "[red]\\x1b[31my": y.roll(1)[i:i + 10]}

def failing():
    yield x[:10]
    raise ValueError("no\\nfile")

def with_ids():
    return [{"z": torch.rand(10), "id": torch.arange(i, i + 10)} for i in [*range(0, 100, 10), 0]]

def needing(argument):
    return argument

number = 3

if __name__ == "__main__":
    raise SystemExit("trained")
"""

SERIES = """
import torch

def make_series():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(200, 4, generator=generator), torch.randn(200, generator=generator)
"""


@pytest.fixture(autouse=True)
def command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(main.COMMANDS, "audit", "Audit the batches of a script.")


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "series.py").write_text(SERIES)
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "series", raising=False)
    return path


def test_a_clean_loader_ends_with_0(script: Path) -> None:
    done = call(stoker_command("audit", "--epochs", "2", f"{script}:clean", "--config", "small.yaml"), script.parent)
    assert (done.code, done.err) == (0, "hello from __stoker_check__ ['--config', 'small.yaml']\n")
    lines = done.out.splitlines()
    assert lines[0] == "DataLoader over TensorDataset: 40 batches with 400 samples in 2 epochs"
    assert {line.split()[0] for line in lines[2:-1]} == {"ok"}
    assert len(lines) == 10
    assert lines[-1] == f"next: stoker diagnose {script} --config small.yaml"


def test_the_only_loader_of_a_script_that_trains_nothing_is_found(stoker: Stoker, script: Path) -> None:
    script.write_text(SCRIPT.replace('raise SystemExit("trained")', "pass"))
    done = call(stoker_command("audit", script), script.parent)  # as a user does
    assert done.code == 0, done.err
    assert "DataLoader over Subset: 15 batches with 150 samples" in done.out
    assert "no other loader" in done.err
    done = call(stoker_command("audit", "--json", script), script.parent)
    assert json.loads(done.out)["ok"] is True, "one document on stdout, and nothing else"
    assert done.err == "hello from __main__ []\n"


def test_a_script_with_a_main_is_audited_as_a_module(stoker: Stoker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pack").mkdir()
    Path("pack/train.py").write_text(TRAINING.replace("FIT", PLAIN))
    done = call(stoker_command("audit", "--max-batches", "5", "-m", "pack.train", "1", "--max-batches", "7"), tmp_path)
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1] == "next: stoker diagnose -m pack.train 1 --max-batches 7"
    assert "DataLoader over Subset: 5 batches with 80 samples" in done.out
    done = stoker("audit", "-q", "--json", "-m", "pack.train", "3")
    assert (done.code, json.loads(done.out)["ok"]) == (1, False)


def test_faults_end_with_1(stoker: Stoker, script: Path) -> None:
    done = stoker("audit", "-q", "--apart-from", "valid", f"{script}:train_loader")
    assert (done.code, done.err) == (1, "")
    assert re.search(
        r"^FAULT +shared samples +10 of 150 samples are in the validation data \(apart_from\), too: ", done.out, re.MULTILINE
    )


def test_names_from_data_do_not_steer_the_terminal(stoker: Stoker, script: Path) -> None:
    done = stoker("audit", "-q", "--reference", "dataset", f"{script}:mixed")
    assert done.code == 1
    assert "'x' of sample 0, '[red]\\x1b[31my' of sample 199" in done.out
    assert "\x1b" not in done.out


def test_json_stands_alone_on_stdout(stoker: Stoker, script: Path) -> None:
    done = stoker("audit", "-q", "--reference", "dataset", "--json", f"{script}:mixed")
    assert done.code == 1
    found = json.loads(done.out)
    assert found["ok"] is False
    assert {check["kind"]: check["count"] for check in found["checks"] if check["severity"] == "fault"} == {"mixed rows": 200}


def test_nothing_of_the_script_is_left_behind(stoker: Stoker, script: Path) -> None:
    script.write_text(SCRIPT + "open('written', 'w').write('by the script')\n")
    assert stoker("audit", "-q", f"{script}:clean", "argument").code == 0
    assert sorted(path.name for path in script.parent.iterdir()) == ["series.py", "train.py"]


def test_classes_of_a_script_work_in_worker_processes(stoker: Stoker, script: Path) -> None:
    script.write_text(
        "import torch\nfrom torch.utils.data import DataLoader, IterableDataset\n"
        "class Numbers(IterableDataset):\n    def __iter__(self):\n        return iter(torch.randn(64, 3))\n"
        "loader = DataLoader(Numbers(), batch_size=8, num_workers=2)\n"
    )
    done = stoker("audit", "-q", f"{script}:loader")
    assert done.code == 0, done.err
    assert "16 batches with 128 samples" in done.out
