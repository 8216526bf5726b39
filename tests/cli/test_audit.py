"""`stoker audit`: runs a script up to its batches, and says what is wrong with them."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.calling import Done, call, stoker_command

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


def test_the_only_loader_of_a_script_that_trains_nothing_is_found(stoker: Stoker, script: Path) -> None:
    script.write_text(SCRIPT.replace('raise SystemExit("trained")', "pass"))
    done = call(stoker_command("audit", script), script.parent)  # as a user does
    assert done.code == 0, done.err
    assert "DataLoader over Subset: 15 batches with 150 samples" in done.out
    assert "no other loader" in done.err
    done = call(stoker_command("audit", "--json", script), script.parent)
    assert json.loads(done.out)["ok"] is True, "one document on stdout, and nothing else"
    assert done.err == "hello from __main__ []\n"


TRAINING = """
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 2)
    def forward(self, x, labels=None):
        logits = self.net(x)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

def parts(copies):
    torch.manual_seed(0)
    x, y = torch.randn(300, 4), torch.randint(0, 2, (300,))
    rows = torch.cat([torch.arange(300), *[torch.arange(300)[y == 1]] * (copies - 1)])
    rows = rows[torch.randperm(len(rows))]
    data, cut = TensorDataset(x[rows], y[rows]), int(0.8 * len(rows))
    return torch.utils.data.Subset(data, range(cut)), torch.utils.data.Subset(data, range(cut, len(rows)))

def main():
    train, valid = parts(int(sys.argv[1]))
    open("written.txt", "w").write("by the script")
FIT

if __name__ == "__main__":
    main()
"""
PLAIN = """
    loader, valid_loader, net = DataLoader(train, 16, shuffle=True), DataLoader(valid, 16), Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for epoch in range(1000):
        for x, y in loader:
            optimizer.zero_grad()
            net(x, y)["loss"].backward()
            optimizer.step()
        with torch.no_grad():
            print(sum(net(x, y)["loss"] for x, y in valid_loader))
"""
TRAINER = """
    from transformers import Trainer, TrainingArguments
    rows = [[{"x": x, "labels": y} for x, y in part] for part in (train, valid)]
    arguments = TrainingArguments("out", num_train_epochs=1000, report_to=[], use_cpu=True, disable_tqdm=True, eval_strategy="epoch")
    Trainer(model=Net(), args=arguments, train_dataset=rows[0], eval_dataset=rows[1]).train()
"""
LIGHTNING = """
    import pytorch_lightning as pl
    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net()
        def training_step(self, batch, number):
            return self.net(*batch)["loss"]
        def validation_step(self, batch, number):
            self.log("loss", self.net(*batch)["loss"])
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)
    class Data(pl.LightningDataModule):
        def train_dataloader(self):
            return DataLoader(train, 16, shuffle=True)
        def val_dataloader(self):
            return DataLoader(valid, 16)
    pl.Trainer(max_epochs=1000, logger=False, enable_checkpointing=False, accelerator="cpu", enable_progress_bar=False,
               enable_model_summary=False).fit(Module(), Data())
"""
FITS = [PLAIN, pytest.param(TRAINER, marks=pytest.mark.slow), pytest.param(LIGHTNING, marks=pytest.mark.slow)]


@pytest.mark.parametrize("fit", FITS, ids=["plain", "hugging face", "lightning"])
def test_a_script_with_a_main_is_audited_against_its_validation_data(
    stoker: Stoker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fit: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(TRAINING.replace("FIT", fit))
    clean = stoker("audit", "--json", "-q", "train.py", "1")
    assert clean.code == 0, clean.out + clean.err
    checks = {check["kind"]: check["severity"] for check in json.loads(clean.out)["checks"]}
    assert checks["shared samples"] == checks["seen twice"] == "passed"
    # A rare class is oversampled before the split.
    leaking = stoker("audit", "--json", "-q", "train.py", "3")
    assert leaking.code == 1
    faults = [check["kind"] for check in json.loads(leaking.out)["checks"] if check["severity"] == "fault"]
    assert faults == ["shared samples"]
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"], "a script changes no file meanwhile"


def test_a_module_is_audited(stoker: Stoker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pack").mkdir()
    Path("pack/train.py").write_text(TRAINING.replace("FIT", PLAIN))
    done = stoker("audit", "-q", "--max-batches", "5", "-m", "pack.train", "1", "--max-batches", "7")
    assert done.code == 0, done.err
    assert "DataLoader over Subset: 5 batches with 80 samples" in done.out


@pytest.mark.parametrize(
    ("fit", "message"),
    [
        ("    raise ValueError('no data')", "train.py (train.py:25) raised ValueError: no data"),
        ("    pass", "trained nothing and has no loader at its top level"),
        (PLAIN.replace("in loader:", "in iter(list(loader)):"), "from an iterator, which cannot be read again"),
    ],
)
def test_why_there_is_nothing_to_audit_is_one_line(
    stoker: Stoker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fit: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(TRAINING.replace("FIT", fit))
    done = stoker("audit", "-q", "train.py", "1")
    assert (done.code, done.out) == (2, "")
    assert message in done.err.splitlines()[-1]


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


def test_json_stands_alone_on_stdout(stoker: Stoker, script: Path) -> None:
    done = stoker("audit", "--reference", "dataset", "--json", f"{script}:mixed")
    assert done.code == 1
    found = json.loads(done.out)
    assert found["ok"] is False
    assert {check["kind"]: check["count"] for check in found["checks"] if check["severity"] == "fault"} == {"mixed rows": 200}
    assert done.err.startswith("hello from __stoker_check__")


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
    done = stoker("audit", f"{script}:loader")
    assert done.code == 0, done.err
    assert "16 batches with 128 samples" in done.out
