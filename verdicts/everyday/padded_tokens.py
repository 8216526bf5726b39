"""Texts of many lengths, padded to the longest of a batch, for the Trainer of Transformers."""

import random
import re
import sys

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import Trainer, TrainingArguments

FIXED = "--fixed" in sys.argv
torch.manual_seed(0)
draw = random.Random(0)
words = ["".join(draw.choices("abcdefghij", k=draw.randint(2, 9))) for _ in range(3000)]
vocabulary = {word: number for number, word in enumerate(words, 1)}
texts = [" ".join(draw.choices(words, k=int(draw.lognormvariate(4, 0.9)) + 4)) for _ in range(2000)]


def tokenize(text):
    pieces = re.findall(r"\w+|[^\w\s]", text.lower())
    return [vocabulary.get(re.sub(r"(.)\1\1+", r"\1", piece), 0) for piece in pieces][:512]


known = {text: tokenize(text) for text in texts} if FIXED else None


def collate(rows):
    tokens = [known[row["text"]] if FIXED else tokenize(row["text"]) for row in rows]
    longest = max(map(len, tokens))
    padded = torch.tensor([token + [0] * (longest - len(token)) for token in tokens])
    return {"tokens": padded, "labels": torch.tensor([row["label"] for row in rows])}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.EmbeddingBag(3001, 32, padding_idx=0)
        self.head = nn.Linear(32, 2)

    def forward(self, tokens, labels):
        logits = self.head(self.embed(tokens))
        return {"loss": cross_entropy(logits, labels), "logits": logits}


arguments = TrainingArguments(
    output_dir="out", max_steps=1_000_000, per_device_train_batch_size=32, use_cpu=True, save_strategy="no", report_to="none",
    disable_tqdm=True, dataloader_pin_memory=False, remove_unused_columns=False,
)  # fmt: skip
data = [{"text": text, "label": len(text) % 2} for text in texts]
Trainer(model=Model(), args=arguments, train_dataset=data, data_collator=collate).train()
