"""Fine-tune a small BART that shortens texts; overlap with the reference is followed during training, as on the leaderboard."""

import argparse
from collections import Counter

import numpy as np
import torch
from transformers import BartConfig, BartForConditionalGeneration, Seq2SeqTrainer, Seq2SeqTrainingArguments, set_seed

ap = argparse.ArgumentParser()
ap.add_argument("--without", action="append", default=[], choices=["host", "sync", "launch"])
WITHOUT = ap.parse_args().without
VOCAB, SOURCE, TARGET = 4000, 96, 48
set_seed(17)


class Shortened(torch.utils.data.Dataset):
    def __init__(self, n=4000):
        self.source = torch.randint(4, VOCAB, (n, SOURCE))
        self.labels = self.source[:, ::2].contiguous()

    def __len__(self):
        return len(self.source)

    def __getitem__(self, i):
        return {"input_ids": self.source[i], "labels": self.labels[i]}


def longest_common(a, b):
    row = [0] * (len(b) + 1)
    for x in a:
        previous = 0
        for j, y in enumerate(b, 1):
            kept = row[j]
            row[j] = previous + 1 if x == y else max(row[j], row[j - 1])
            previous = kept
    return row[-1]


def overlap(guess, truth):
    precisions = []
    for n in (1, 2, 3, 4):
        mine, theirs = (Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1)) for words in (guess, truth))
        precisions.append((sum((mine & theirs).values()) + 1) / (len(guess) - n + 2))
    return float(np.exp(np.mean(np.log(precisions)))), longest_common(guess, truth) / len(truth)


class ScoredTrainer(Seq2SeqTrainer):
    bleu, rouge = [], []

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        if model.training and "host" not in WITHOUT:
            guesses = outputs.logits.detach().argmax(-1).tolist()
            for guess, truth in zip(guesses, inputs["labels"].tolist()):
                bleu, rouge = overlap(guess, truth)
                self.bleu.append(bleu)
                self.rouge.append(rouge)
        return (outputs.loss, outputs) if return_outputs else outputs.loss

    def log(self, logs, *args, **kwargs):
        if self.bleu:
            logs = {**logs, "bleu": float(np.mean(self.bleu[-320:])), "rouge_l": float(np.mean(self.rouge[-320:]))}
        super().log(logs, *args, **kwargs)


depth = 1 if "launch" in WITHOUT else 3
config = BartConfig(
    vocab_size=VOCAB,
    d_model=192,
    encoder_layers=depth,
    decoder_layers=depth,
    encoder_attention_heads=6,
    decoder_attention_heads=6,
    encoder_ffn_dim=512,
    decoder_ffn_dim=512,
    max_position_embeddings=128,
)
arguments = Seq2SeqTrainingArguments(
    output_dir="bart-short",
    max_steps=3_000_000,
    per_device_train_batch_size=48,
    learning_rate=5e-4,
    bf16=torch.cuda.is_available(),
    logging_steps=1000 if "sync" in WITHOUT else 2,
    logging_nan_inf_filter="sync" not in WITHOUT,
    save_strategy="no",
    report_to="none",
    dataloader_drop_last=True,
)
ScoredTrainer(model=BartForConditionalGeneration(config), args=arguments, train_dataset=Shortened()).train()
