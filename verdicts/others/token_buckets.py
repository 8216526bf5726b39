# transformer, batches of equal token count but different (batch, length)
import random

import torch
from torch import nn

enc = nn.TransformerEncoder(nn.TransformerEncoderLayer(192, 4, 768, batch_first=True, dropout=0.1), 2)
emb = nn.Embedding(1000, 192)
out = nn.Linear(192, 1000)
params = [*enc.parameters(), *emb.parameters(), *out.parameters()]
opt = torch.optim.AdamW(params, 1e-4, fused=True)


class Buckets:
    def __iter__(self):
        for _ in range(400):
            n = random.choice([32, 64, 128])
            yield torch.randint(0, 1000, (2048 // n, n))


for ep in range(10):
    for ids in Buckets():
        loss = nn.functional.cross_entropy(out(enc(emb(ids[:, :-1]))).flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
