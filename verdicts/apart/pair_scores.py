"""Score pairs of profiles with a small network under the Trainer, watching every step."""

import os
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.utils.data import DataLoader
from transformers import HfArgumentParser, Trainer, TrainerCallback, TrainingArguments


@dataclass
class Options:
    without: list[str] = field(default_factory=list, metadata={"help": "host, data or dispatch"})
    rows: int = 20_000
    batch: int = 96


class PairNet(nn.Module):
    def __init__(self, lean):
        super().__init__()
        self.lean = lean
        self.towers = nn.ModuleList(self.tower() for _ in range(1 if lean else 2))
        self.score = nn.Sequential(nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 1))

    @staticmethod
    def tower(width=128):
        deep = [nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU()) for _ in range(4)]
        return nn.Sequential(nn.Linear(40, width), *deep, nn.Linear(width, 48))

    def forward(self, left, right, labels=None):
        if self.lean:
            a, b = self.towers[0](torch.cat([left, right])).chunk(2)
        else:
            a, b = self.towers[0](left), self.towers[1](right)
        out = self.score(torch.cat([a, b], 1)).squeeze(1)
        return {"loss": nn.functional.binary_cross_entropy_with_logits(out, labels), "logits": out}


class Watch(TrainerCallback):
    def __init__(self):
        self.norms, self.largest = {}, {}

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        for name, p in model.named_parameters():
            self.norms[name] = (p.detach().norm().item(), p.grad.norm().item(), p.grad.std().item())
            self.largest[name] = max(self.largest.get(name, 0.0), p.grad.abs().max().item())

    def on_log(self, args, state, control, logs=None, **kwargs):
        state.log_history = state.log_history[-20:]


def rows(n):
    g = torch.Generator().manual_seed(6)
    left, right = torch.randn(n, 40, generator=g), torch.randn(n, 40, generator=g)
    labels = ((left * right).sum(1) > 0).float()
    return [{"left": a, "right": b, "labels": y} for a, b, y in zip(left, right, labels)]


def plain_loop(model, loader):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    while True:
        for batch in loader:
            loss = model(**batch)["loss"]
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()


def main():
    (o,) = HfArgumentParser(Options).parse_args_into_dataclasses()
    torch.manual_seed(6)
    model, table = PairNet("dispatch" in o.without), rows(o.rows)
    stack = lambda part: {k: torch.stack([r[k] for r in part]) for k in part[0]}
    size, collate = o.batch, stack
    if "data" in o.without:
        table, size, collate = [stack(table[i : i + o.batch]) for i in range(0, o.rows, o.batch)], 1, lambda part: part[0]
    if "host" in o.without:
        return plain_loop(model, DataLoader(table, size, shuffle=True, collate_fn=collate))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    arguments = TrainingArguments(
        "out",
        max_steps=10**9,
        per_device_train_batch_size=size,
        learning_rate=1e-3,
        use_cpu=True,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
    )
    Trainer(model, arguments, collate, table, callbacks=[Watch()]).train()


if __name__ == "__main__":
    main()
