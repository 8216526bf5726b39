"""Patches of real programs in real processes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec
import pytest
from tests.diagnose.findings import on_gpu
from tests.diagnose.measured import on_cpu

from stoker.compare.sides import Version
from stoker.diagnose.measurements import Advice, Patch
from stoker.diagnose.patches import EditableProgram, changes_of, find_sites, offer_patch

PROGRAM = """# -*- coding: latin-1 -*-
import torch
from rows import Rows
from torch.utils.data import DataLoader as DL

torch.set_num_threads(1)
data = Rows()
loader = DL(
    data,
    batch_size=2500,  # gro\xdf
    shuffle=True,
)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=SPEED)
for epoch in range(100000):
    for x in loader:
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
ROWS = """import torch

class Rows(torch.utils.data.Dataset):
    def __init__(self):
        self.x = torch.linspace(0, 1, 10_000).reshape(5_000, 2)

    def __len__(self):
        return 5_000

    def __getitem__(self, index):
        return self.x[index]
"""


def offered(folder: Path, program: bytes, *names: str) -> Patch:
    (folder / "train.py").write_bytes(program)
    (folder / "rows.py").write_text(ROWS)
    steps = [Advice(name=name, sentence=name, predicted=None) for name in names]
    finding = msgspec.structs.replace(on_gpu(), verdict="data", next=steps, measurements=on_cpu())
    patch = offer_patch(finding, folder / "train.py", path=folder / "a.patch", quiet=True).patch
    assert patch is not None
    return patch


@pytest.mark.promise("P19")
@pytest.mark.slow
def test_a_patch_is_measured_in_the_program_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = PROGRAM.replace("SPEED", "1e-3").replace("\n", "\r\n").encode("latin-1")
    patch = offered(tmp_path, program, "feed", "tf32")
    assert (patch.fixes, patch.folder) == (["gather"], None)
    assert patch.left_out["feed"] == "it is more than an edit of lines; tried instead: gather and workers"
    assert patch.tried is not None
    assert patch.tried.losses == "equal"
    assert (tmp_path / "train.py").read_bytes() == program  # the file is not touched
    subprocess.run(["git", "apply", "a.patch"], check=True)
    after = (tmp_path / "train.py").read_bytes()
    assert b"batch_size=None,  # gro\xdf\r\n    shuffle=False,\r\n    sampler=torch.utils.data.BatchSampler(" in after
    again = offered(tmp_path, after, "feed")
    assert (again.file, again.left_out["gather"]) == (None, "line 8 sets sampler"), "workers gain nothing either"


@pytest.mark.slow
def test_negative_control_an_edit_that_changes_the_losses_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # With workers, each process draws its own numbers.
    noisy = ROWS.replace("return self.x[index]", "return self.x[index] + torch.rand(2)")
    (tmp_path / "noisy.py").write_text(noisy)
    program = PROGRAM.replace("SPEED", "1e-3").replace("from rows", "from noisy").encode("latin-1")
    patch = offered(tmp_path, program, "workers")
    assert "changes the training" in patch.left_out["workers"]
    assert patch.file is None


@pytest.mark.slow
def test_the_lines_of_a_module_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kit").mkdir()
    (tmp_path / "kit" / "train.py").write_bytes(
        PROGRAM.replace("SPEED", "1e-3").replace("from rows", "from .rows").encode("latin-1")
    )
    (tmp_path / "kit" / "rows.py").write_text(ROWS)
    sites = find_sites(Version(program="kit.train", module=True), [], quiet=True)
    assert [Path(file).relative_to(tmp_path).as_posix() for file in sites.files] == ["kit/rows.py", "kit/train.py"]
    program = EditableProgram(sites=sites, values={})
    changed = {change.file for name in ("fused", "gather") for change in changes_of(name, program)}
    assert changed == {str(tmp_path / "kit" / "train.py")}
