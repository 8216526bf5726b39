"""Default risk of loans from their columns with the Trainer: each column is embedded by its own module, as in tabular papers."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from transformers import Trainer, TrainingArguments, set_seed

parser = argparse.ArgumentParser()
parser.add_argument("--without", action="append", default=[], choices=["launch", "sync", "data"])
without = parser.parse_args().without
set_seed(2024)

SIZES = [3 + (7 * i) % 60 for i in range(72)]
NUMBERS, WIDTH, BATCH = 36, 16, 512


class Loans(torch.utils.data.Dataset):
    def __init__(self, n=60_000):
        self.codes = torch.stack([torch.randint(size, (n,)) for size in SIZES], 1)
        self.values = torch.randn(n, NUMBERS)
        self.labels = ((self.codes[:, :5].sum(1) % 2) + self.values[:, 0] > 0.5).float()

    def __len__(self):
        return len(self.labels)

    def __getitems__(self, rows):
        return {"codes": self.codes[rows], "values": self.values[rows], "labels": self.labels[rows]}


class Blocks(Loans):
    """The rows in blocks that lie side by side."""

    def __init__(self):
        super().__init__()
        self.blocks = [super(Blocks, self).__getitems__(slice(i, i + BATCH)) for i in range(0, 60_000 - BATCH, BATCH)]

    def __len__(self):
        return len(self.blocks)

    def __getitems__(self, rows):
        return self.blocks[rows[0]]


class ByColumn(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, WIDTH) for size in SIZES)
        self.scales = nn.ModuleList(nn.Sequential(nn.Linear(1, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)) for _ in range(NUMBERS))

    def forward(self, codes, values):
        parts = [table(codes[:, i]) for i, table in enumerate(self.tables)]
        parts += [scale(values[:, i : i + 1]) for i, scale in enumerate(self.scales)]
        return torch.cat(parts, 1)


class AtOnce(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(sum(SIZES), WIDTH)
        self.register_buffer("first", torch.tensor([0, *SIZES[:-1]]).cumsum(0))
        self.enter, self.shift = nn.Parameter(torch.randn(NUMBERS, WIDTH)), nn.Parameter(torch.zeros(NUMBERS, WIDTH))
        self.leave = nn.Parameter(torch.randn(NUMBERS, WIDTH, WIDTH) / WIDTH**0.5)

    def forward(self, codes, values):
        hidden = F.relu(values[:, :, None] * self.enter + self.shift)
        scaled = torch.einsum("bnw,nwv->bnv", hidden, self.leave)
        return torch.cat([self.table(codes + self.first).flatten(1), scaled.flatten(1)], 1)


class RiskNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.columns = AtOnce() if "launch" in without else ByColumn()
        inner = (len(SIZES) + NUMBERS) * WIDTH
        self.body = nn.Sequential(nn.Linear(inner, 384), nn.GELU(), nn.Linear(384, 384), nn.GELU(), nn.Linear(384, 1))

    def forward(self, codes, values, labels=None):
        logits = self.body(self.columns(codes, values)).squeeze(1)
        return {"loss": F.binary_cross_entropy_with_logits(logits, labels), "logits": logits}


class RiskTrainer(Trainer):
    recent = None

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        out = model(**inputs)
        if "sync" not in without:
            p, y = out["logits"].detach().sigmoid(), inputs["labels"]
            now = [(p.round() == y).float().mean(), p.mean(), (p - y).square().mean(), p.std()]
            now = [value.item() for value in now]
            self.recent = [0.98 * a + 0.02 * b for a, b in zip(self.recent or now, now)]
        return (out["loss"], out) if return_outputs else out["loss"]


arguments = TrainingArguments(
    output_dir="runs", max_steps=10_000_000, learning_rate=1e-3, warmup_steps=100, report_to="none", save_strategy="no",
    per_device_train_batch_size=1 if "data" in without else BATCH, dataloader_drop_last=True, remove_unused_columns=False,
    logging_steps=500 if "sync" in without else 10, disable_tqdm=True,
)  # fmt: skip
RiskTrainer(
    RiskNet(), arguments, data_collator=lambda batch: batch, train_dataset=(Blocks if "data" in without else Loans)()
).train()
