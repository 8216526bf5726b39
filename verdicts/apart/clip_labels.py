"""Classify short clips with patches of space and time. Accelerate puts batches on the device."""

import argparse

import torch
import torch.nn as nn
from accelerate import Accelerator
from accelerate.utils import set_seed


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--without", action="append", default=[], help="transfer, sync or precision")
    p.add_argument("--batch", type=int, default=64 if torch.cuda.is_available() else 8)
    p.add_argument("--side", type=int, default=112 if torch.cuda.is_available() else 48)
    return p.parse_args()


class ClipNet(nn.Module):
    def __init__(self, side, dim=192, classes=50):
        super().__init__()
        self.patch = nn.Conv3d(3, dim, (4, 16, 16), (4, 16, 16))
        self.place = nn.Parameter(torch.zeros(1, 3 * (side // 16) ** 2, dim))
        self.blocks = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(dim, 4, 2 * dim, 0.0, batch_first=True, norm_first=True), 2, enable_nested_tensor=False
        )
        self.head = nn.Linear(dim, classes)

    def forward(self, clip):
        x = self.patch(clip).flatten(2).transpose(1, 2) + self.place
        return self.head(self.blocks(x).mean(1))


def first(rows):
    return rows[0]


def main():
    args = parse()
    set_seed(21)
    accelerator = Accelerator(mixed_precision="bf16" if "precision" in args.without else "no")
    clips = [
        {"clip": torch.rand(args.batch, 3, 12, args.side, args.side), "label": torch.randint(50, (args.batch,))} for _ in range(6)
    ]
    if "transfer" in args.without:
        clips = [{k: v.to(accelerator.device) for k, v in c.items()} for c in clips]
    loader = torch.utils.data.DataLoader(clips, batch_size=1, shuffle=True, collate_fn=first)
    model = ClipNet(args.side)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100_000)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    running, step = 0.0, 0
    while True:
        for batch in loader:
            logits = model(batch["clip"])
            loss = nn.functional.cross_entropy(logits, batch["label"], label_smoothing=0.1)
            accelerator.backward(loss)
            norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            step += 1
            if "sync" not in args.without:
                running = 0.95 * running + 0.05 * loss.item()
                right = (logits.argmax(1) == batch["label"]).sum().item()
                print(f"\rstep {step} loss {running:.3f} right {right} norm {float(norm):.2f}", end="")


if __name__ == "__main__":
    main()
