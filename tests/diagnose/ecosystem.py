"""Trainings as people write them: other trainers, several optimizers, compiled models, loops of all kinds. None knows of stoker."""

HEAD = """
import sys, warnings
warnings.filterwarnings("ignore")
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset
torch.set_num_threads(1)
torch.manual_seed(0)
x, y = torch.randn(256, 16), torch.randn(256)
train, valid = TensorDataset(x[:192], y[:192]), TensorDataset(x[192:], y[192:])
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
loader = DataLoader(train, batch_size=8, shuffle=True)
valid_loader = DataLoader(valid, batch_size=8)
def loss_of(model, x, y):
    return (model(x).squeeze(-1) - y).pow(2).mean()
"""

LOOP = """
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for epoch in range(EPOCHS):
    for a, b in loader:
        loss = loss_of(model, a, b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

PLAIN = HEAD + LOOP.replace("EPOCHS", "100000")

TRAINER = (
    HEAD
    + """
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
config = BertConfig(vocab_size=100, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, num_labels=2)
ids = torch.randint(0, 100, (256, 12))
class Rows(Dataset):
    def __init__(self, numbers):
        self.numbers = numbers
    def __len__(self):
        return len(self.numbers)
    def __getitem__(self, index):
        return {"input_ids": ids[self.numbers[index]], "labels": self.numbers[index] % 2}
arguments = TrainingArguments(output_dir="out", num_train_epochs=1000, per_device_train_batch_size=8, report_to=[], save_steps=5,
                              eval_strategy="steps", eval_steps=5, logging_steps=2, use_cpu=True, save_total_limit=2)
Trainer(model=BertForSequenceClassification(config), args=arguments, train_dataset=Rows(range(192)),
        eval_dataset=Rows(range(int(sys.argv[1]), 256))).train()
"""
)

ACCELERATE = (
    HEAD
    + """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
model, optimizer, loader, valid_loader = accelerator.prepare(model, optimizer, loader, valid_loader)
for epoch in range(100000):
    for a, b in loader:
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, a, b))
            optimizer.step()
            optimizer.zero_grad()
    for a, b in valid_loader:
        loss_of(model, a, b)
    accelerator.save_state("state")
"""
)

LIGHTNING = (
    HEAD
    + """
import pytorch_lightning as pl
class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = model
    def training_step(self, batch, number):
        loss = loss_of(self.net, *batch)
        self.log("loss", loss, prog_bar=True)
        return loss
    def validation_step(self, batch, number):
        self.log("valid", loss_of(self.net, *batch))
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)
leaky = DataLoader(TensorDataset(x[int(sys.argv[1]):], y[int(sys.argv[1]):]), batch_size=8)
pl.Trainer(max_epochs=1000, accelerator="cpu", log_every_n_steps=2, val_check_interval=5).fit(Module(), loader, leaky)
"""
)

COMPILED = PLAIN.replace("optimizer = torch", "model = torch.compile(model, backend='aot_eager')\noptimizer = torch")

ACCUMULATED = PLAIN.replace("for a, b in loader:", "for i, (a, b) in enumerate(loader):").replace(
    "        optimizer.zero_grad()\n        loss.backward()\n        optimizer.step()\n",
    "        (loss / 3).backward()\n        if i % 3 == 2:\n            optimizer.step()\n            optimizer.zero_grad()\n",
)

GAN = (
    HEAD
    + """
judge = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
maker = torch.nn.Linear(4, 16)
of_judge, of_maker = torch.optim.Adam(judge.parameters()), torch.optim.Adam(maker.parameters())
for epoch in range(100000):
    for real, _ in loader:
        made = maker(torch.randn(8, 4))
        of_judge.zero_grad()
        (judge(made.detach()).mean() - judge(real).mean()).backward()
        of_judge.step()
        of_maker.zero_grad()
        (-judge(made).mean()).backward()
        of_maker.step()
"""
)

ITERATOR = (
    HEAD
    + """
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
batches = iter(loader)
for step in range(1000000):
    try:
        a, b = next(batches)
    except StopIteration:
        batches = iter(loader)
        a, b = next(batches)
    loss_of(model, a, b).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
)

CLOSURE = (
    HEAD
    + """
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=2)
for a, b in list(loader) * 10000:
    def closure():
        optimizer.zero_grad()
        loss = loss_of(model, a, b)
        loss.backward()
        return loss
    optimizer.step(closure)
"""
)

SPAWNED = (
    HEAD
    + """
class Rows(Dataset):
    def __len__(self):
        return 192
    def __getitem__(self, index):
        return x[index], y[index]
def main():
    loader = DataLoader(Rows(), batch_size=8, shuffle=True, num_workers=2, multiprocessing_context="spawn", persistent_workers=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for epoch in range(100000):
        for a, b in loader:
            loss = loss_of(model, a, b)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
if __name__ == "__main__":
    main()
"""
)

IN_WORKERS_ONLY = (
    HEAD
    + """
from torch.utils.data import get_worker_info
class Rows(Dataset):
    file = None
    def __len__(self):
        return 192
    def __getitem__(self, index):
        return self.file[index], y[index]
def begin(number):
    get_worker_info().dataset.file = x
loader = DataLoader(Rows(), batch_size=8, shuffle=True, num_workers=2, worker_init_fn=begin)
"""
    + LOOP.replace("EPOCHS", "100000")
)

ARGUMENTS = (
    """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, required=True)
epochs = parser.parse_args().epochs
"""
    + HEAD
    + LOOP.replace("EPOCHS", "epochs")
)

WRITER = (
    HEAD
    + """
import csv, json, os, pathlib, pickle, shutil
import numpy as np
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
log = open("log.csv", "a")
for epoch in range(100000):
    for i, (a, b) in enumerate(loader):
        loss = loss_of(model, a, b)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        csv.writer(log).writerow([epoch, i])
        if i == 3:
            os.makedirs("runs/1", exist_ok=True)
            torch.save(model.state_dict(), "best.pt.tmp")
            os.replace("best.pt.tmp", "best.pt")
            shutil.copy2("best.pt", "runs/1/last.pt")
            json.dump({"epoch": epoch}, open("state.json", "w"))
            pathlib.Path("runs/1/note.txt").write_text("well")
            np.save("runs/1/x.npy", x.numpy())
            if os.path.exists("old.pt"):
                os.remove("old.pt")
            model.load_state_dict(torch.load("best.pt"))
"""
)
