import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

letters = torch.from_numpy(np.fromfile("data/tokens.bin", dtype="<u2")[:256_000].astype("int64") % 32)
SEQ, BATCH = 32, 20
# (steps, batch) streams, as in truncated backpropagation through time
streams = letters.view(BATCH, -1).t().contiguous()


class LetterModel(nn.Module):
    def __init__(self, emb=8, hid=24):
        super().__init__()
        self.hid = hid
        self.emb = nn.Embedding(32, emb)
        self.cell1 = nn.LSTMCell(emb, hid)
        self.cell2 = nn.LSTMCell(hid, hid)
        self.dec = nn.Linear(hid, 32)

    def start(self, b):
        zeros = torch.zeros(b, self.hid)
        return [(zeros, zeros), (zeros, zeros)]

    def forward(self, x, state):
        s1, s2 = state
        outs = []
        for t in range(x.size(0)):
            s1 = self.cell1(self.emb(x[t]), s1)
            s2 = self.cell2(F.dropout(s1[0], 0.1, self.training), s2)
            outs.append(self.dec(s2[0]))
        return torch.stack(outs), [s1, s2]


model = LetterModel()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for epoch in range(200):
    state = model.start(BATCH)
    total, count = 0.0, 0
    for i in range(0, streams.size(0) - SEQ - 1, SEQ):
        state = [(h.detach(), c.detach()) for h, c in state]
        x, y = streams[i : i + SEQ], streams[i + 1 : i + SEQ + 1]
        logits, state = model(x, state)
        loss = F.cross_entropy(logits.view(-1, 32), y.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        total += loss.item()
        count += 1
    print(f"epoch {epoch} ppl {np.exp(total / count):.2f}")
