import json
import re

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments


class Texts(Dataset):
    def __init__(self):
        self.rows = [json.loads(l) for l in open("data/text.jsonl")]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        r = self.rows[i]
        ids = []
        for w in re.findall(r"\w+", r["text"]):
            for n in (2, 3):
                ids += [hash(w[k : k + n]) % 4096 for k in range(len(w) - n + 1)]
        ids = (ids + [0] * 512)[:512]
        return {"input_ids": torch.tensor(ids), "labels": r["label"]}


class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.EmbeddingBag(4096, 16)
        self.o = nn.Linear(16, 2)

    def forward(self, input_ids, labels=None):
        lo = self.o(self.e(input_ids))
        return {"loss": nn.functional.cross_entropy(lo, labels), "logits": lo}


if __name__ == "__main__":
    args = TrainingArguments(
        "hf_out", per_device_train_batch_size=64, num_train_epochs=30, logging_steps=20, save_steps=100, report_to=[], use_cpu=True
    )
    ds = Texts()
    Trainer(M(), args, train_dataset=ds, eval_dataset=ds).train()
