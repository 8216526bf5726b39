"""Masked token prediction, in the manner of BERT, on data/tokens.bin"""

import random

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

VOCAB, MASK, SEQ = 512, 512, 96


class Blocks(Dataset):
    def __init__(self, path):
        tokens = np.fromfile(path, dtype=np.uint16)
        self.blocks = tokens[: len(tokens) // SEQ * SEQ].reshape(-1, SEQ)

    def __len__(self):
        return len(self.blocks)

    def __getitem__(self, i):
        return [int(t) for t in self.blocks[i]]


class MaskingCollator:
    def __init__(self, p=0.15):
        self.p = p

    def __call__(self, rows):
        inputs, labels = [], []
        for row in rows:
            inp, lab = [], []
            for tok in row:
                r = torch.rand(1).item()
                if r < self.p * 0.8:
                    inp.append(MASK)
                    lab.append(tok)
                elif r < self.p * 0.9:
                    inp.append(random.randint(0, VOCAB - 1))
                    lab.append(tok)
                elif r < self.p:
                    inp.append(tok)
                    lab.append(tok)
                else:
                    inp.append(tok)
                    lab.append(-100)
            inputs.append(inp)
            labels.append(lab)
        return {"input_ids": torch.tensor(inputs), "labels": torch.tensor(labels)}


class TinyMLM(nn.Module):
    def __init__(self, d=12):
        super().__init__()
        self.tok = nn.Embedding(VOCAB + 1, d)
        self.mix = nn.Linear(d, d)
        self.out = nn.Linear(d, 14)

    def forward(self, input_ids):
        h = self.tok(input_ids)
        h = h + torch.relu(self.mix(h))
        return self.out(h)


def main():
    loader = DataLoader(
        Blocks("data/tokens.bin"),
        batch_size=24,
        shuffle=True,
        collate_fn=MaskingCollator(),
        drop_last=True,
    )
    model = TinyMLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    step = 0
    for epoch in range(40):
        for batch in loader:
            logits = model(batch["input_ids"])
            labels = torch.where(batch["labels"] >= 0, batch["labels"] % 14, batch["labels"])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 100 == 0:
                print(f"step {step}: {loss.item():.4f}")
        torch.save(model.state_dict(), "mlm.pt")


if __name__ == "__main__":
    main()
