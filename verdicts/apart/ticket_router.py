"""Route support tickets with a small encoder and the Trainer; texts are tokenized when they are asked for."""

import argparse
import random
import re

import torch
from transformers import DistilBertConfig, DistilBertForSequenceClassification, Trainer, TrainingArguments, set_seed

parser = argparse.ArgumentParser()
parser.add_argument("--without", nargs="*", action="extend", default=[])
without = parser.parse_args().without
set_seed(4)
SYLLABLES = "ka lo mi ten ra su vo del in ar pre con".split()
random.seed(4)
vocabulary = {word: i + 4 for i, word in enumerate(sorted({a + b for a in SYLLABLES for b in SYLLABLES}))}
pieces = re.compile(r"[a-z]+|\d|[^\sa-z\d]")


def words(n):
    return " ".join(random.choice(SYLLABLES) + random.choice(SYLLABLES) for _ in range(n))


class Tickets(torch.utils.data.Dataset):
    def __init__(self, n=3000):
        self.texts = [words(random.randint(120, 400)) for _ in range(n)]
        self.ready = [self.encode(text) for text in self.texts] if "data" in without else None

    def encode(self, text):
        ids = []
        for match in pieces.finditer(text.lower().strip()):
            piece = match.group()
            while piece and piece not in vocabulary:
                piece = piece[:-1]
            ids.append(vocabulary.get(piece, 3))
        return ids[:128]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, i):
        ids = self.ready[i] if self.ready else self.encode(self.texts[i])
        return {"input_ids": ids, "attention_mask": [1] * len(ids), "labels": i % 12}


class Collate:
    def __call__(self, rows):
        longest = max(len(row["input_ids"]) for row in rows)
        fill = lambda values: values + [0] * (longest - len(values))
        return {
            "input_ids": torch.tensor([fill(row["input_ids"]) for row in rows]),
            "attention_mask": torch.tensor([fill(row["attention_mask"]) for row in rows]),
            "labels": torch.tensor([row["labels"] for row in rows]),
        }


layers = 1 if "launch" in without else 3
model = DistilBertForSequenceClassification(
    DistilBertConfig(vocab_size=len(vocabulary) + 4, dim=128, n_layers=layers, n_heads=4, hidden_dim=256, num_labels=12)
)
arguments = TrainingArguments(
    "out", max_steps=10_000_000, per_device_train_batch_size=64, learning_rate=2e-4, bf16=torch.cuda.is_available(), save_strategy="no",
    report_to="none", logging_steps=500 if "sync" in without else 5, logging_nan_inf_filter="sync" not in without,
)  # fmt: skip
Trainer(model, arguments, train_dataset=Tickets(), data_collator=Collate()).train()
