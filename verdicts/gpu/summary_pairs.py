"""T5 for summaries: documents and summaries of all lengths, padded to the longest of their batch."""

import sys

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import T5Config, T5ForConditionalGeneration, Trainer, TrainingArguments

OFF = sys.argv[2::2]
rng = np.random.default_rng(5)
torch.manual_seed(5)


def pair():
    source, target = rng.integers(20, 200), rng.integers(5, 40)
    return torch.from_numpy(rng.integers(2, 3000, source)), torch.from_numpy(rng.integers(2, 3000, target))


def collate(pairs):
    source = pad_sequence([a for a, _ in pairs], batch_first=True)
    target = pad_sequence([b for _, b in pairs], batch_first=True, padding_value=-100)
    return {"input_ids": source, "attention_mask": (source > 0).long(), "labels": target}


class SummaryTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        out = model(**inputs)
        if "sync" not in OFF:
            mask = inputs["labels"] != -100
            hits = (out.logits.argmax(-1) == inputs["labels"]) & mask
            self.seen = getattr(self, "seen", 0) + int(mask.sum())
            self.hits = getattr(self, "hits", 0) + int(hits.sum())
            if out.loss > 50:
                print("loss is large", out.loss.item())
        return (out.loss, out) if return_outputs else out.loss


pairs, size = [pair() for _ in range(4000)], 8
if "data" in OFF:
    pairs, size = [collate(pairs[i : i + 8]) for i in range(0, 4000, 8)], 1
layers = 1 if "launch" in OFF else 4
model = T5ForConditionalGeneration(
    T5Config(
        vocab_size=3000, d_model=192, d_kv=32, d_ff=512, num_layers=layers, num_decoder_layers=layers, num_heads=6,
        decoder_start_token_id=0, pad_token_id=0,
    )
)  # fmt: skip
arguments = TrainingArguments(
    output_dir="t5",
    max_steps=1_000_000,
    per_device_train_batch_size=size,
    logging_steps=200 if "sync" in OFF else 1,
    logging_nan_inf_filter="sync" not in OFF,
    max_grad_norm=0.0 if "sync" in OFF else 1.0,
    report_to="none",
    save_strategy="no",
)
collator = (lambda rows: rows[0]) if "data" in OFF else collate
SummaryTrainer(model=model, args=arguments, train_dataset=pairs, data_collator=collator).train()
