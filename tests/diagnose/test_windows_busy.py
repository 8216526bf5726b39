"""Programs beside noisy neighbours: no verdict, but the likely cause with its line and what to do next."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from verdicts.neighbour import noisy_neighbours

from stoker.diagnose.api import diagnose_script

HEAD = """
import random, sys
import torch
from torch.utils.data import DataLoader, Dataset
torch.manual_seed(0)

class Rows(Dataset):
    def __init__(self, work):
        self.work = work
    def __len__(self):
        return 2000
    def __getitem__(self, number):
        values = [random.random() for _ in range(self.work)]
        values.sort()
        return {"x": torch.full((16,), number / 2000), "labels": torch.tensor(number % 2)}
"""
LOOP = """
width, work = map(int, sys.argv[1:])
model = torch.nn.Sequential(torch.nn.Linear(16, width), torch.nn.ReLU(), torch.nn.Linear(width, width), torch.nn.Linear(width, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(1000):
    for batch in DataLoader(Rows(work), batch_size=16, shuffle=True):
        loss = torch.nn.functional.cross_entropy(model(batch["x"].repeat(16, 1)), batch["labels"].repeat(16))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
TRAINER = """
from transformers import Trainer, TrainingArguments
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(16, 2)
    def forward(self, x, labels=None):
        return {"loss": torch.nn.functional.cross_entropy(self.net(x), labels)}
arguments = TrainingArguments(output_dir="out", num_train_epochs=1, per_device_train_batch_size=16, report_to=[], save_strategy="no",
                              use_cpu=True, disable_tqdm=True)
Trainer(model=Net(), args=arguments, train_dataset=Rows(int(sys.argv[2]))).train()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "arguments", "likely"),
    [
        (LOOP, ("8", "4000"), {"data"}),
        (LOOP, ("1500", "1"), {"compute", "memory", "dispatch", "optimizer"}),
        (TRAINER, ("8", "4000"), {"data"}),
    ],
    ids=["data", "compute", "hugging face"],
)
def test_a_busy_machine_has_a_likely_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, arguments: tuple[str, ...], likely: set[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(HEAD + source)
    with noisy_neighbours(2 * len(os.sched_getaffinity(0))):
        finding = diagnose_script("train.py", arguments, quiet=True, seconds=8.0)
    if finding.verdict != "none":
        pytest.skip("the neighbours had too little of the cores")
    assert finding.likely is not None, finding.why
    assert finding.likely.verdict in likely
    assert finding.place is not None
    assert "LIKELY" in str(finding)
    if likely == {"data"}:
        assert finding.next
        assert "Rows.__getitem__" in str(finding)
