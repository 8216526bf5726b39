"""A patch transformer for load curves with the Trainer, float32, evaluated every 30 steps on the whole validation year."""

import argparse

import torch
from torch import nn
from transformers import Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--without", action="append", default=[])
without = parser.parse_args().without
torch.manual_seed(5)


class Curves(torch.utils.data.Dataset):
    def __init__(self, n):
        self.x = torch.randn(n, 512).cumsum(1)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"past": self.x[i, :416], "labels": self.x[i, 416:]}


class PatchNet(nn.Module):
    def __init__(self, d=192):
        super().__init__()
        self.patch = nn.Linear(16, d)
        layer = nn.TransformerEncoderLayer(d, 6, 512, batch_first=True, dropout=0.0)
        self.body = nn.TransformerEncoder(layer, 1 if "launch" in without else 4)
        self.head = nn.Linear(26 * d, 96)

    def forward(self, past, labels):
        scale = past.abs().mean(1, keepdim=True)
        out = self.head(self.body(self.patch((past / scale).unflatten(1, (26, 16)))).flatten(1)) * scale
        return {"loss": nn.functional.l1_loss(out, labels), "logits": out}


def scores(prediction):
    guess, truth = prediction
    return {"smape": float((abs(guess - truth) / (abs(guess) + abs(truth))).mean())}


arguments = TrainingArguments(
    "out", max_steps=10_000_000, per_device_train_batch_size=64, logging_steps=30, report_to="none", save_strategy="no",
    eval_strategy="no" if "host" in without else "steps", eval_steps=30, per_device_eval_batch_size=64, disable_tqdm=True,
    logging_nan_inf_filter="sync" not in without,
)  # fmt: skip
Trainer(PatchNet(), arguments, train_dataset=Curves(8_000), eval_dataset=Curves(3_000), compute_metrics=scores).train()
