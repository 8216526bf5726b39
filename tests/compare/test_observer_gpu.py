"""Runs on a GPU: memory of the device, the time of its work, bits, and what rounding explains."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.compare.engine import Comparisons
from stoker.compare.observed import Observed
from stoker.compare.sides import Version, prepared

pytestmark = pytest.mark.gpu
PROGRAM = """
import torch
torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(4096, 256), torch.randn(4096, 1))
loader = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(256, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 1)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
big = torch.randn(4096, 4096, device="cuda")
for epoch in range(10):
    for x, y in loader:
        optimizer.zero_grad()
        loss = (model(x.cuda()) - y.cuda()).square().mean()
        loss.backward()
        optimizer.step()
        for _ in range(WORK):
            big @ big
"""


def run(folder: Path, text: str, **options: object) -> Observed:
    path = folder / "train.py"
    path.write_text(text)
    with prepared(Version(program=str(path))) as side:
        return side.run([], steps=60, time_limit=300, **options)


def written(**values: int) -> str:
    text = PROGRAM
    for name, value in {"WIDTH": 512, "WORK": 0, **values}.items():
        text = text.replace(name, str(value))
    return text


def test_work_of_the_device_is_in_the_time_and_memory_is_known(tmp_path: Path) -> None:
    little, much = run(tmp_path, written()), run(tmp_path, written(WORK=20))
    assert little.device == "cuda"
    assert little.device_bytes > 64 << 20
    assert much.step_seconds > little.step_seconds + 20 * 2 * 4096**3 / 2e15, "the host does not wait for the products"
    assert run(tmp_path, written(), observe=True).random.keys() >= {"cuda", "torch"}


def test_fixes_are_judged_by_their_results_and_speed(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    text = written(WORK=20)
    program.write_text(text)

    def edit(old: str, new: str) -> Version:
        assert old in text
        return Version(program=str(program), edits={str(program): text.replace(old, new).encode()})

    with Comparisons(Version(program=str(program)), steps=100) as comparisons:
        less = comparisons.compare(edit("range(20)", "range(5)"), budget=90)
        fused = comparisons.compare(edit("lr=1e-3", "lr=1e-3, fused=True"), budget=0)
        half = comparisons.compare(edit("loss = (", "with torch.autocast('cuda', torch.bfloat16):\n            loss = ("), budget=0)
    assert (less.status, less.losses.verdict) == (0, "equal"), str(less)
    assert fused.losses.verdict in ("equal", "rounding"), str(fused)
    assert half.losses.verdict == "changed", str(half)
