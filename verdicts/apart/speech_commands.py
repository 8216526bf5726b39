"""Recognize commands by the Trainer on a CPU; a callback writes gradients of all layers to a JSON file after each step."""

import argparse
import json
import tempfile
from pathlib import Path

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--without", action="append", default=[])
without = parser.parse_args().without
torch.manual_seed(21)


class Clips(torch.utils.data.Dataset):
    def __init__(self):
        self.sounds, self.labels = torch.randn(1_600, 1, 4000), torch.randint(10, (1_600,))

    def __len__(self):
        return 1_600

    def __getitem__(self, i):
        return {"sound": self.sounds[i], "labels": self.labels[i]}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(1, 24, 40, 16), nn.ReLU(), nn.Conv1d(24, 48, 9, 4), nn.ReLU(), nn.AdaptiveAvgPool1d(4), nn.Flatten()
        )
        self.head = nn.Linear(192, 10)

    def forward(self, sound, labels):
        scores = self.head(self.body(sound))
        return {"loss": nn.functional.cross_entropy(scores, labels), "logits": scores}


class Journal(TrainerCallback):
    path = Path(tempfile.mkdtemp()) / "gradients.jsonl"

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        entry = {name: [round(value, 5) for value in weight.grad.flatten().tolist()] for name, weight in model.named_parameters()}
        with self.path.open("a") as file:
            file.write(json.dumps({"step": state.global_step, **entry}) + "\n")
        if self.path.stat().st_size > 50_000_000:
            self.path.unlink()


arguments = TrainingArguments(
    tempfile.mkdtemp(), max_steps=10_000_000, per_device_train_batch_size=16, logging_steps=20, report_to="none", save_strategy="no", use_cpu=True,
    disable_tqdm=True,
)  # fmt: skip
Trainer(Net(), arguments, train_dataset=Clips(), callbacks=[] if "host" in without else [Journal()]).train()
