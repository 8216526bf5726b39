import json

import torch
from torch import nn
from torch.utils.data import DataLoader

rows = [json.loads(l) for l in open("data/text.jsonl")]
vocab = {w: i + 1 for i, w in enumerate(sorted({w for r in rows for w in r["text"].split()}))}


def collate(batch):
    toks = [[vocab[w] for w in r["text"].split()] for r in batch]
    m = max(len(t) for t in toks)
    ids = torch.zeros(len(batch), m, dtype=torch.long)
    mask = torch.zeros(len(batch), m)
    for i, t in enumerate(toks):
        for j, w in enumerate(t):
            ids[i, j] = w
            mask[i, j] = 1.0
    return {"ids": ids, "mask": mask, "label": torch.tensor([r["label"] for r in batch])}


class Clf(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(len(vocab) + 1, 32)
        self.out = nn.Linear(32, 2)

    def forward(self, ids, mask):
        e = self.emb(ids) * mask[..., None]
        return self.out(e.sum(1) / mask.sum(1, keepdim=True))


net = Clf()
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
sched = torch.optim.lr_scheduler.StepLR(opt, 5, 0.5)
loader = DataLoader(rows, batch_size=32, shuffle=True, collate_fn=collate)
for epoch in range(20):
    total = 0
    for b in loader:
        loss = nn.functional.cross_entropy(net(b["ids"], b["mask"]), b["label"])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        total += loss.item()
    sched.step()
    print(epoch, total / len(loader))
