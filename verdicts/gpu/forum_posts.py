"""Sort forum posts into topics: words are split into pieces as rows are asked for."""

import random
import re
import sys

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, default_data_collator

OFF = sys.argv[2::2]
random.seed(31)
torch.manual_seed(31)
SYLLABLES = [a + b for a in "bcdfghklmnprst" for b in "aeiou"]
VOCABULARY = {piece: i + 3 for i, piece in enumerate(SYLLABLES + [a + b for a in SYLLABLES for b in SYLLABLES])}
SPLIT = re.compile(r"\w+|[^\w\s]")


def post():
    return " ".join("".join(random.choices(SYLLABLES, k=random.randint(1, 5))) for _ in range(random.randint(150, 250)))


class Posts(Dataset):
    def __init__(self, count=1500, length=256):
        self.length = length
        self.posts = [(post(), random.randint(0, 7)) for _ in range(count)]

    def __len__(self):
        return len(self.posts)

    def pieces(self, word):
        while word:
            size = next((n for n in range(min(8, len(word)), 0, -1) if word[:n] in VOCABULARY), 1)
            yield VOCABULARY.get(word[:size], 1)
            word = word[size:]

    def __getitem__(self, i):
        text, topic = self.posts[i]
        ids = [2] + [piece for word in SPLIT.findall(text.lower()) for piece in self.pieces(word)]
        ids = ids[: self.length]
        rest = self.length - len(ids)
        return {"input_ids": ids + [0] * rest, "attention_mask": [1] * len(ids) + [0] * rest, "labels": topic}


posts = Posts()
if "data" in OFF:
    rows = [posts[i] for i in range(len(posts))]
    posts = [default_data_collator(rows[i : i + 32]) for i in range(0, len(rows) - 31, 32)]
model = BertForSequenceClassification(
    BertConfig(
        vocab_size=len(VOCABULARY) + 3, hidden_size=256, num_hidden_layers=1 if "launch" in OFF else 4, num_attention_heads=4,
        intermediate_size=1024, num_labels=8,
    )
)  # fmt: skip
arguments = TrainingArguments(
    output_dir="topics",
    max_steps=1_000_000,
    per_device_train_batch_size=1 if "data" in OFF else 32,
    bf16=torch.cuda.is_available(),
    logging_steps=1000 if "sync" in OFF else 5,
    logging_nan_inf_filter="sync" not in OFF,
    save_strategy="no",
    report_to="none",
)
collator = (lambda batch: batch[0]) if "data" in OFF else default_data_collator
Trainer(model=model, args=arguments, train_dataset=posts, data_collator=collator).train()
