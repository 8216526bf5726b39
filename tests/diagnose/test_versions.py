"""The experiments of a diagnosis on a version of a program whose files on disk are others."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.compare.sides import Version
from stoker.diagnose.versions import shares_of
from stoker.errors import TrainError

PROGRAM = """
import time, torch
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 40_000
    def __getitem__(self, index):
        time.sleep(0.0005)
        return torch.ones(8)
for x in torch.utils.data.DataLoader(Rows(), batch_size=10):
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_the_experiments_of_a_diagnosis_run_on_a_version(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("raise SystemExit(3)")
    shares = shares_of(Version(program=str(program), edits={str(program): PROGRAM.encode()}), [])
    assert max(shares, key=lambda name: shares[name]) == "data"


def test_a_version_that_fails_is_an_error(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("raise SystemExit(3)")
    with pytest.raises(TrainError, match="ended with exit code 3"):
        shares_of(Version(program=str(program)), [])
