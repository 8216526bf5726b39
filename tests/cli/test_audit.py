"""`stoker audit`: runs a script up to its batches, and says what is wrong with them."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.calling import Done, environment

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


def test_a_clean_loader_ends_with_0(stoker: Stoker, script: Path) -> None:
    done = stoker("audit", "--epochs", "2", f"{script}:clean", "--config", "small.yaml")
    assert (done.code, done.err) == (0, "hello from __stoker_check__ ['--config', 'small.yaml']\n")
    lines = done.out.splitlines()
    assert lines[0] == "DataLoader over TensorDataset: 40 batches with 400 samples in 2 epochs"
    assert {line.split()[0] for line in lines[2:]} == {"ok"}
    assert len(lines) == 9


def test_quiet_drops_what_the_script_prints(stoker: Stoker, script: Path) -> None:
    done = stoker("audit", "-q", f"{script}:clean")
    assert (done.code, done.began, done.err) == (0, "", "")
    assert done.out.startswith("DataLoader over")


def test_the_only_loader_of_a_script_is_found(stoker: Stoker, script: Path) -> None:
    done = stoker("audit", script)
    assert done.code == 0
    assert "DataLoader over Subset: 15 batches with 150 samples" in done.out


def test_faults_end_with_1(stoker: Stoker, script: Path) -> None:
    done = stoker("audit", "--apart-from", "valid", f"{script}:train_loader")
    assert (done.code, done.err) == (1, "hello from __stoker_check__ []\n")
    assert re.search(r"^FAULT +shared samples +10 of 150 samples are in apart_from, too: ", done.out, re.MULTILINE)


def test_names_from_data_do_not_steer_the_terminal(stoker: Stoker, script: Path) -> None:
    done = stoker("audit", "--reference", "dataset", "--shuffled", f"{script}:mixed")
    assert done.code == 1
    assert "'x' of sample 0, '[red]\\x1b[31my' of sample 199" in done.out
    assert "\x1b" not in done.out
    assert "FAULT      order" in done.out


def test_numbers_and_bounds_are_passed_on(stoker: Stoker, script: Path) -> None:
    assert "FAULT" not in stoker("audit", "--ids", "id", "--max-batches", "10", f"{script}:with_ids").out
    done = stoker("audit", "--ids", "id", "--not-shuffled", f"{script}:with_ids")
    assert "10 of 110 rows of epoch 0 came again" in done.out
    part = stoker("audit", "--reference-limit", "50", f"{script}:clean")
    assert "of 200, drawn at random" in part.out


def test_json_stands_alone_on_stdout(stoker: Stoker, script: Path) -> None:
    done = stoker("audit", "--reference", "dataset", "--json", f"{script}:mixed")
    assert done.code == 1
    found = json.loads(done.out)
    assert found["ok"] is False
    assert {check["kind"]: check["count"] for check in found["checks"] if check["severity"] == "fault"} == {"mixed rows": 200}
    assert done.err.startswith("hello from __stoker_check__")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (":failing", (), "train.py line 22 raised ValueError: no … file"),
        (":needing", (), "needing of {} needs arguments; expected a function without required arguments."),
        (":nothing", (), "has no 'nothing' at its top level; it has DataLoader, Subset, "),
        (":number", (), "batches is of type int; expected an iterable of batches, or a function that returns one."),
        (":clean", ("--reference", "nothing"), "has no 'nothing' at its top level"),
        (":clean", ("--ids", "z"), "ids is 'z', but a batch has '[0]' and '[1]'."),
        (":failing", ("--epochs", "0"), "0 is not in the range x>=1"),
    ],
)
def test_errors_are_a_line_and_code_2(stoker: Stoker, script: Path, name: str, options: tuple[str, ...], message: str) -> None:
    done = stoker("audit", *options, f"{script}{name}")
    assert done.code == 2
    assert message.format(script) in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1 +", "train.py line 1 raised SyntaxError: "),
        ("import sys\n\n1 / 0", "train.py line 3 raised ZeroDivisionError: division by zero"),
        ("import argparse\nargparse.ArgumentParser().parse_args(['--what'])", "train.py exited with code 2 before"),
        ("def make():\n    return []\n\ndef other(a):\n    pass", "has no loader at its top level. Name an iterable"),
        (
            "import series\nfrom torch.utils.data import *\na, b = DataLoader([1]), DataLoader([2])",
            "train.py has 2 loaders: a, b. Choose one: ",
        ),
    ],
)
def test_a_script_without_batches(stoker: Stoker, script: Path, text: str, message: str) -> None:
    script.write_text(text)
    done = stoker("audit", script)
    assert done.code == 2
    assert message in done.err
    if "def make" in text:
        assert "Functions that could: make." in done.err


def test_a_script_that_is_not_there(stoker: Stoker, tmp_path: Path) -> None:
    assert (
        stoker("audit", tmp_path / "no.py:loader").err
        == f"stoker: {tmp_path / 'no.py'} does not exist; expected a Python script.\n"
    )
    assert "is a folder; expected a Python script." in stoker("audit", tmp_path).err


def test_one_loader_by_two_names_is_one(stoker: Stoker, script: Path) -> None:
    script.write_text(
        "import torch\nfrom torch.utils.data import DataLoader\nloader = DataLoader(torch.randn(64, 3))\nsame = loader\n"
    )
    assert stoker("audit", script).code == 0


def test_nothing_of_the_script_is_left_behind(stoker: Stoker, script: Path) -> None:
    argv, paths = sys.argv, list(sys.path)
    stoker("audit", f"{script}:clean", "argument")
    assert (sys.argv, sys.path) == (argv, paths)
    assert "__stoker_check__" not in sys.modules
    assert sorted(path.name for path in script.parent.iterdir()) == ["series.py", "train.py"]


def test_classes_of_a_script_work_in_worker_processes(stoker: Stoker, script: Path) -> None:
    script.write_text(
        "import torch\nfrom torch.utils.data import DataLoader, IterableDataset\n"
        "class Numbers(IterableDataset):\n    def __iter__(self):\n        return iter(torch.randn(64, 3))\n"
        "loader = DataLoader(Numbers(), batch_size=8, num_workers=2)\n"
    )
    done = stoker("audit", script)
    assert done.code == 0, done.err
    assert "16 batches with 128 samples" in done.out


def test_on_a_terminal_there_are_colours_and_progress(script: Path) -> None:
    code = "import sys; from stoker.cli import main; main.COMMANDS['check'] = ''; main.main(sys.argv[1:])"
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    command = [sys.executable, "-c", code, "audit", "--reference", "dataset", "train.py:mixed"]
    process = subprocess.Popen(command, cwd=script.parent, env=environment(TERM="xterm-256color"), stdout=slave, stderr=slave)
    os.close(slave)
    shown = b""
    try:
        while True:
            try:
                data = os.read(master, 65536)
            except OSError:  # the last one who held the terminal has left
                break
            if not data:
                break
            shown += data
        assert process.wait(timeout=200) == 1
    finally:
        os.close(master)
        process.kill()
        process.wait()
    text = shown.decode("utf-8", "replace")
    assert "\x1b[1;31mFAULT" in text
    assert "reference" in text
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    assert "mixed: 20 batches with 200 samples" in plain
    assert max(len(line.rstrip()) for line in plain.splitlines() if "FAULT" in line) <= 100
