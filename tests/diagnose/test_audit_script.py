"""The batches of scripts that train in a `main`, also by Hugging Face and Lightning, are audited against their validation data."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.diagnose.audit_script import audit_script
from stoker.errors import BatchError

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


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("fit", FITS, ids=["plain", "hugging face", "lightning"])
def test_samples_that_were_copied_before_the_split_are_found(folder: Path, fit: str) -> None:
    Path("train.py").write_text(TRAINING.replace("FIT", fit))
    answer = audit_script("train.py", ["1"], quiet=True)
    assert answer.report is not None
    assert (answer.num_others, answer.report.faults) == (1, ()), "negative control: a clean split"
    assert "shared samples" in {check.kind for check in answer.report.checks if check.severity == "passed"}
    answer = audit_script("train.py", ["3"], quiet=True)
    assert answer.report is not None
    assert [fault.kind for fault in answer.report.faults] == ["shared samples"]
    assert [path.name for path in folder.iterdir()] == ["train.py"], "a script changes no file meanwhile"


@pytest.mark.parametrize(
    ("fit", "message"),
    [
        ("    raise ValueError('no data')", r"train\.py \(train\.py:25\) raised ValueError: no data"),
        ("    pass", "trained nothing and has no loader at its top level"),
        (PLAIN.replace("in loader:", "in iter(list(loader)):"), "from an iterator, which cannot be read again"),
    ],
)
def test_why_there_is_nothing_to_audit(fit: str, message: str) -> None:
    Path("train.py").write_text(TRAINING.replace("FIT", fit))
    with pytest.raises(BatchError, match=message):
        audit_script("train.py", ["1"], quiet=True)
