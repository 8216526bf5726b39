"""A small language model, trained by the Trainer of Transformers; text is sampled every 20 steps."""

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
        self.embed = nn.Embedding(256, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True, dropout=0.0)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 256)

    def forward(self, tokens, labels=None):
        logits = self.head(self.body(self.embed(tokens))[:, -1])
        return {"loss": cross_entropy(logits, labels) if labels is not None else None, "logits": logits}


class Sample(TrainerCallback):
    def on_step_end(self, arguments, state, control, model, **_):
        if state.global_step % 20 == 0 and not FIXED:
            text = torch.zeros(1, 64, dtype=torch.long)
            with torch.no_grad():
                for _ in range(400):
                    text = torch.cat([text, model(text[:, -64:])["logits"].argmax(1, keepdim=True)], 1)


tokens = torch.randint(0, 256, (1024, 65))
rows = [{"tokens": row[:64], "labels": row[64]} for row in tokens]
arguments = TrainingArguments(
    output_dir="out", max_steps=1_000_000, per_device_train_batch_size=16, use_cpu=True, save_strategy="no", report_to="none",
    disable_tqdm=True, dataloader_pin_memory=False,
)  # fmt: skip
Trainer(model=Model(), args=arguments, train_dataset=rows, callbacks=[Sample()]).train()
