"""Mask and guess words by an ELECTRA-sized BERT; a callback writes the norm and the median of each weight."""

import sys

import numpy as np
import torch
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainerCallback, TrainingArguments

OFF = sys.argv[2::2]
torch.manual_seed(9)


class Journal(TrainerCallback):
    def __init__(self, path="weights.tsv"):
        self.path = path

    def on_step_end(self, args, state, control, model=None, **kwargs):
        with open(self.path, "a") as file:
            for name, weight in model.named_parameters():
                values = weight.detach().float().cpu().numpy()
                file.write(f"{state.global_step}\t{name}\t{np.linalg.norm(values):.5f}\t{np.median(values):.6f}\n")


def masked(rows):
    ids = torch.stack(rows)
    chosen = torch.rand(ids.shape) < 0.15
    return {"input_ids": ids.masked_fill(chosen, 4), "labels": ids.masked_fill(~chosen, -100)}


config = BertConfig(
    vocab_size=6000,
    hidden_size=256,
    num_hidden_layers=1 if "launch" in OFF else 4,
    num_attention_heads=4,
    intermediate_size=768,
    max_position_embeddings=128,
)
sentences = list(torch.randint(5, 6000, (3000, 128)))
arguments = TrainingArguments(
    "journal", max_steps=1_000_000, per_device_train_batch_size=16, bf16=torch.cuda.is_available(), logging_steps=50,
    save_strategy="no", report_to="none", remove_unused_columns=False, disable_tqdm=True,
)  # fmt: skip
callbacks = [Journal()] if "host" not in OFF else None
if "data" in OFF:
    ready = [masked(sentences[i : i + 16]) for i in range(0, 2992, 16)]
    arguments.per_device_train_batch_size = 1
    trainer = Trainer(BertForMaskedLM(config), arguments, lambda rows: rows[0], ready, callbacks=callbacks)
else:
    trainer = Trainer(BertForMaskedLM(config), arguments, masked, sentences, callbacks=callbacks)
trainer.train()
