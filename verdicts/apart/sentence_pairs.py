"""Train a sentence encoder on pairs with in-batch negatives: Trainer, two micro-batches per update, padded to the longest text."""

import argparse
import random

import torch
import torch.nn.functional as F
from torch import nn
from transformers import BertConfig, BertModel, Trainer, TrainingArguments

cli = argparse.ArgumentParser()
cli.add_argument("--without", action="append", default=[], metavar="NAME")
OFF = set(cli.parse_args().without)
gpu = torch.cuda.is_available()
random.seed(40)
torch.manual_seed(40)


def sentence():
    return [101] + [random.randrange(1000, 8000) for _ in range(random.randint(6, 46))] + [102]


class Pairs(torch.utils.data.Dataset):
    def __init__(self, n=6000):
        self.pairs = []
        for _ in range(n):
            first = sentence()
            second = first[:1] + random.sample(first[1:-1], len(first) - 2) + first[-1:]
            self.pairs.append((first, second))

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, i):
        return self.pairs[i]


def pad(texts):
    longest = max(map(len, texts))
    return torch.tensor([t + [0] * (longest - len(t)) for t in texts])


def collate(rows):
    if "launch" in OFF:
        return {"ids": pad([a for a, _ in rows] + [b for _, b in rows])}
    return {"left": pad([a for a, _ in rows]), "right": pad([b for _, b in rows])}


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        config = BertConfig(vocab_size=8000, hidden_size=192, num_hidden_layers=6, num_attention_heads=6, intermediate_size=576)
        self.bert = BertModel(config, add_pooling_layer=False)
        self.scale = nn.Parameter(torch.tensor(3.0))

    def embed(self, ids):
        mask = ids.ne(0)
        states = self.bert(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        return F.normalize((states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True), dim=1)

    def forward(self, left=None, right=None, ids=None):
        a, b = self.embed(ids).chunk(2) if ids is not None else (self.embed(left), self.embed(right))
        scores = (a @ b.T).float() * self.scale.exp()
        target = torch.arange(len(scores), device=scores.device)
        loss = (F.cross_entropy(scores, target) + F.cross_entropy(scores.T, target)) / 2
        return {"loss": loss, "scores": scores, "target": target}


class PairTrainer(Trainer):
    top1, matched, others = 0.0, 0.0, 0.0

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        out = model(**inputs)
        if "sync" not in OFF:
            scores = out["scores"].detach()
            self.top1 = (scores.argmax(1) == out["target"]).float().mean().item()
            self.matched = scores.diagonal().mean().item()
            self.others = scores.mean().item()
        return (out["loss"], out) if return_outputs else out["loss"]

    def log(self, logs, *args, **kwargs):
        super().log({**logs, "top1": self.top1, "gap": self.matched - self.others}, *args, **kwargs)


class Prepared(Pairs):
    def __init__(self):
        super().__init__()
        self.pairs = [collate(self.pairs[i : i + 32]) for i in range(0, len(self.pairs) - 31, 32)]


ready = "data" in OFF
args = TrainingArguments(
    "encoder", max_steps=5_000_000, per_device_train_batch_size=1 if ready else 32, gradient_accumulation_steps=2, bf16=gpu,
    learning_rate=2e-4, lr_scheduler_type="constant_with_warmup", warmup_steps=200, logging_steps=400 if "sync" in OFF else 5,
    logging_nan_inf_filter="sync" not in OFF, save_strategy="no", report_to=[], remove_unused_columns=False, dataloader_drop_last=True,
    disable_tqdm=True,
)  # fmt: skip
trainer = PairTrainer(
    model=Encoder(),
    args=args,
    train_dataset=Prepared() if ready else Pairs(),
    data_collator=(lambda rows: rows[0]) if ready else collate,
)
trainer.train()
