"""Classify reviews by a BERT with the Trainer; the loss of every step is printed."""

import sys

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

OFF = sys.argv[2::2]  # --without NAME, once or several times
set_seed(11)
config = BertConfig(
    vocab_size=8000,
    hidden_size=192,
    num_hidden_layers=3 if "launch" in OFF else 12,
    num_attention_heads=6,
    intermediate_size=512,
    num_labels=3,
)
model = BertForSequenceClassification(config)


def review():
    return {"input_ids": torch.randint(5, 8000, (96,)), "attention_mask": torch.ones(96).long(), "labels": torch.randint(3, ())}


rows, size, collate = [review() for _ in range(4096)], 16, None
if "data" in OFF:
    rows = [{key: torch.stack([row[key] for row in rows[i : i + 16]]) for key in rows[0]} for i in range(0, 4096, 16)]
    size, collate = 1, lambda batch: batch[0]

args = TrainingArguments(
    output_dir="out",
    max_steps=1_000_000,
    per_device_train_batch_size=size,
    learning_rate=3e-4,
    bf16=torch.cuda.is_available(),
    logging_steps=100 if "sync" in OFF else 1,
    logging_nan_inf_filter="sync" not in OFF,
    disable_tqdm=True,
    save_strategy="no",
    report_to="none",
)
Trainer(model=model, args=args, train_dataset=rows, data_collator=collate).train()
