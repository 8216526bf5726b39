"""A recurrent cell over sequences of many lengths, one call per moment, in a Trainer of Transformers."""

import sys

import torch
from torch import nn
from torch.nn.functional import mse_loss
from transformers import Trainer, TrainingArguments

FIXED = "--fixed" in sys.argv
torch.manual_seed(0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(8, 16)
        self.head = nn.Linear(16, 1)

    def forward(self, x, labels):
        state = x.new_zeros(len(x), 16)
        for moment in range(6 if FIXED else x.shape[1]):
            state = self.cell(x[:, moment], state)
        out = self.head(state)
        return {"loss": mse_loss(out, labels), "logits": out}


def collate(rows):
    longest = max(len(row["x"]) for row in rows)
    x = torch.zeros(len(rows), longest, 8)
    for number, row in enumerate(rows):
        x[number, : len(row["x"])] = row["x"]
    return {"x": x, "labels": torch.stack([row["labels"] for row in rows])}


rows = [{"x": torch.randn(int(length), 8), "labels": torch.randn(1)} for length in torch.randint(20, 160, (1024,))]
arguments = TrainingArguments(
    output_dir="out", max_steps=1_000_000, per_device_train_batch_size=4, use_cpu=True, save_strategy="no", report_to="none",
    disable_tqdm=True, dataloader_pin_memory=False,
)  # fmt: skip
Trainer(model=Model(), args=arguments, train_dataset=rows, data_collator=collate).train()
