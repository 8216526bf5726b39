"""Stars of reviews by BERT base: a word tokenizer and the padding collator of the library, reviews of all lengths."""

import random
import sys

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)

OFF = sys.argv[2::2]
GPU = torch.cuda.is_available()
random.seed(64)
torch.manual_seed(64)
words = {"[PAD]": 0, "[UNK]": 1} | {f"word{i}": i + 2 for i in range(2998)}
inner = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
inner.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="[PAD]", unk_token="[UNK]")


def review():
    length = min(440, 20 + int(random.lognormvariate(4.2, 0.7)))
    return " ".join(f"word{random.randrange(2998)}" for _ in range(length)), random.randrange(5)


reviews = [review() for _ in range(3200 if GPU else 64)]
rows = [{**tokenizer(text), "labels": stars} for text, stars in reviews]
size, collate = 64 if GPU else 2, DataCollatorWithPadding(tokenizer)
if "compute" in OFF:  # like lengths in a batch
    rows.sort(key=lambda row: len(row["input_ids"]))
if "data" in OFF or "compute" in OFF:
    parts = [rows[i : i + size] for i in range(0, len(rows), size)]
    rows, size, collate = [dict(collate(part)) for part in parts], 1, lambda batch: batch[0]
config = BertConfig(vocab_size=3000, num_hidden_layers=12 if GPU else 1, num_labels=5)
arguments = TrainingArguments(
    output_dir="stars",
    max_steps=1_000_000,
    per_device_train_batch_size=size,
    bf16=GPU,
    learning_rate=2e-5,
    logging_steps=500 if "sync" in OFF else 10,
    logging_nan_inf_filter="sync" not in OFF,
    save_strategy="no",
    report_to="none",
)
Trainer(model=BertForSequenceClassification(config), args=arguments, train_dataset=rows, data_collator=collate).train()
