"""Statistics of all weights after each step, by a callback of the Trainer of Transformers."""

import json
import sys

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import Trainer, TrainerCallback, TrainingArguments

FIXED = "--fixed" in sys.argv
torch.manual_seed(0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(256, 32)
        self.body = nn.GRU(32, 64, batch_first=True)
        self.head = nn.Linear(64, 2)

    def forward(self, tokens, labels):
        logits = self.head(self.body(self.embed(tokens))[0].mean(1))
        return {"loss": cross_entropy(logits, labels), "logits": logits}


class Norms(TrainerCallback):
    def on_step_end(self, arguments, state, control, model, **_):
        with open("norms.jsonl", "a") as file:
            for name, weight in model.named_parameters():
                values = sorted(weight.detach().flatten().tolist())
                file.write(json.dumps({"name": name, "median": values[len(values) // 2], "largest": values[-1]}) + "\n")


rows = [{"tokens": row[:64], "labels": row[64] % 2} for row in torch.randint(0, 256, (1024, 65))]
arguments = TrainingArguments(
    output_dir="out", max_steps=1_000_000, per_device_train_batch_size=16, use_cpu=True, save_strategy="no", report_to="none",
    disable_tqdm=True, dataloader_pin_memory=False,
)  # fmt: skip
Trainer(model=Model(), args=arguments, train_dataset=rows, callbacks=[] if FIXED else [Norms()]).train()
