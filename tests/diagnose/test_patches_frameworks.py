"""Patches of programs whose loop a framework runs: the switch is edited where it stands, and the edited program has run with it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec
import pytest
from tests.diagnose.findings import on_gpu
from tests.diagnose.measured import on_cpu

from stoker.diagnose.edit_sites import CallSite, EditSites
from stoker.diagnose.measurements import Advice, Patch
from stoker.diagnose.patches import EditableProgram, changes_of, offer_patch
from stoker.diagnose.source_edits import edited
from stoker.errors import TrainError

ARGUMENTS = """from transformers import TrainingArguments as Settings

settings = Settings(
    "out",  # where
    logging_steps=1,
)
"""


def sites_at(
    folder: Path, text: str, call: str, *, framework: str = "transformers", own: bool = True, **facts: object
) -> EditSites:
    """The sites of a program in which this call, by its last line, makes the settings of a framework."""
    file = folder / "train.py"
    file.write_text(text)
    lines = text.splitlines()
    number = next(number for number, line in enumerate(lines) if line.endswith(call))
    site = CallSite(file=str(file), line=number + 1, column=len(lines[number]), own=own)
    kind = {"transformers": "TrainingArguments", "lightning": "Trainer", "accelerate": "Accelerator"}[framework]
    calls = {kind: [site], "optimizers": [CallSite(file="/x/site-packages/trainer.py", line=1, column=1, own=False)]}
    return EditSites(main=str(file), files=[str(file)], calls=calls, framework=framework, **facts)  # type: ignore[arg-type]


def changed(sites: EditSites, fix: str, **values: int) -> list[str]:
    """The lines that a fix adds or changes, stripped."""
    program = EditableProgram(sites=sites, values=dict(values))
    after = edited(program.sources, changes_of(fix, program))[sites.main].decode()
    return [line.strip() for line in after.splitlines() if line not in Path(sites.main).read_text().splitlines()]


@pytest.mark.parametrize(
    ("fix", "lines"),
    [
        ("workers", ["dataloader_num_workers=3,", "dataloader_persistent_workers=True,"]),
        ("fused", ['optim="adamw_torch_fused",']),
        ("autocast", ["bf16=True,"]),
        ("tf32", ["tf32=True,"]),
        ("compile", ["torch_compile=True,"]),
        ("pinned", ["dataloader_pin_memory=True,"]),
        ("reads", ["logging_nan_inf_filter=False,"]),
        ("callbacks", ["logging_steps=500,"]),
    ],
)
def test_the_arguments_of_transformers_are_the_edit(fix: str, lines: list[str], tmp_path: Path) -> None:
    assert changed(sites_at(tmp_path, ARGUMENTS, ")"), fix, workers=3) == lines


def test_a_value_decides_what_else_is_set(tmp_path: Path) -> None:
    sites = sites_at(tmp_path, ARGUMENTS, ")")
    assert changed(sites, "workers", workers=0) == ["dataloader_num_workers=0,"]
    assert changed(sites, "compile", compile=1) == ["torch_compile=True,", 'torch_compile_mode="reduce-overhead",']


def test_workers_are_kept_only_if_there_are_any(tmp_path: Path) -> None:
    text = "settings = Settings('out', dataloader_num_workers=number)\n"
    sites = sites_at(tmp_path, text, ")", workers=2)
    assert changed(sites, "persistent") == [text.strip()[:-1] + ", dataloader_persistent_workers=bool(number))"]
    with pytest.raises(TrainError, match="has no workers"):
        changed(sites_at(tmp_path, text, ")"), "persistent")


@pytest.mark.parametrize(
    ("framework", "fix", "text", "line"),
    [
        ("lightning", "autocast", 'trainer = pl.Trainer(precision="32")', 'trainer = pl.Trainer(precision="bf16-mixed")'),
        (
            "lightning",
            "reads",
            "trainer = pl.Trainer(max_epochs=1)",
            "trainer = pl.Trainer(max_epochs=1, enable_progress_bar=False)",
        ),
        ("lightning", "callbacks", "trainer = pl.Trainer(log_every_n_steps=1)", "trainer = pl.Trainer(log_every_n_steps=500)"),
        ("accelerate", "autocast", "run = Accelerator(cpu=True)", 'run = Accelerator(cpu=True, mixed_precision="bf16")'),
    ],
)
def test_the_arguments_of_other_frameworks_are_the_edit(framework: str, fix: str, text: str, line: str, tmp_path: Path) -> None:
    assert changed(sites_at(tmp_path, f"{text}\n", ")", framework=framework), fix) == [line]


@pytest.mark.promise("P19", control=True)
@pytest.mark.parametrize(
    ("text", "fix", "own", "why"),
    [
        (ARGUMENTS, "workers", False, "which belongs to an installed package"),
        (ARGUMENTS.replace("logging_steps=1,", "bf16=bool(1),"), "autocast", True, "computes bf16"),
        (ARGUMENTS.replace("logging_steps=1,", "optim='adafactor',"), "fused", True, "sets another optimizer"),
        (ARGUMENTS.replace("logging_steps=1,", "bf16=True,"), "autocast", True, "the lines are already as proposed"),
    ],
)
def test_negative_control_an_unclear_edit_is_not_made(text: str, fix: str, own: bool, why: str, tmp_path: Path) -> None:
    with pytest.raises(TrainError) as refused:
        changed(sites_at(tmp_path, text, ")", own=own), fix)
    assert why in str(refused.value)


# ---- real programs ----

ROWS = """import time
import torch

torch.set_num_threads(1)
torch.manual_seed(0)
x = torch.randn(4096, 8)

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        time.sleep(1e-3)
        return {"x": x[index], "labels": x[index].sum()}

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def forward(self, x, labels):
        return {"loss": (self.layer(x).squeeze(-1) - labels).square().mean()}
"""
TRANSFORMERS = """from rows import Net, Rows
from transformers import Trainer, TrainingArguments

settings = TrainingArguments(
    output_dir="out",  # where
    num_train_epochs=1000,
    per_device_train_batch_size=16,
    report_to=[],
    use_cpu=True,
)
Trainer(model=Net(), args=settings, train_dataset=Rows()).train()
"""
LIGHTNING = """import pytorch_lightning as pl
import torch
from rows import Net, Rows
from torch.utils.data import DataLoader

class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net()

    def training_step(self, batch, number):
        return self.net(**batch)["loss"]

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)

loader = DataLoader(Rows(), batch_size=16, shuffle=True)  # the samples
trainer = pl.Trainer(max_epochs=1000, accelerator="cpu", enable_checkpointing=False, logger=False)
trainer.fit(Module(), loader)
"""


def offered(folder: Path, program: str, *names: str) -> Patch:
    (folder / "train.py").write_text(program)
    (folder / "rows.py").write_text(ROWS)
    steps = [Advice(name=name, sentence=name, predicted=None) for name in names]
    finding = msgspec.structs.replace(on_gpu(), verdict="data", next=steps, measurements=on_cpu())
    patch = offer_patch(finding, folder / "train.py", path=folder / "a.patch", quiet=True).patch
    assert patch is not None
    return patch


@pytest.mark.promise("P19")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "lines"),
    [
        (TRANSFORMERS, ["    dataloader_num_workers=2,", "    dataloader_persistent_workers=True,"]),
        (
            LIGHTNING,
            ["loader = DataLoader(Rows(), batch_size=16, shuffle=True, num_workers=2, persistent_workers=True)  # the samples"],
        ),
    ],
    ids=["transformers", "lightning"],
)
def test_workers_of_a_framework_are_measured_and_written(
    program: str, lines: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("stoker.diagnose.patches.value_of", lambda *words: 2)
    patch = offered(tmp_path, program, "workers", "tf32")
    assert patch.tried is not None, patch.left_out
    assert (patch.fixes, patch.tried.losses) == (["workers"], "equal")
    assert patch.tried.speedup > 1.3, "samples sleep in two processes"
    assert (tmp_path / "train.py").read_text() == program
    subprocess.run(["git", "apply", "a.patch"], check=True)
    after = (tmp_path / "train.py").read_text().splitlines()
    assert [line for line in after if line not in program.splitlines()] == lines
