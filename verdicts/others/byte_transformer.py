import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

# ---- config ----
seq_len = 64
batch_size = 16
d_model = 192
n_head = 4
n_layer = 2
max_steps = 20_000
warmup = 200
base_lr = 0.05

# ---- data ----
tokens = torch.from_numpy(np.fromfile("data/tokens.bin", dtype=np.uint16).astype(np.int64)) % 256
chunks = tokens[: len(tokens) // (seq_len + 1) * (seq_len + 1)].view(-1, seq_len + 1)


# ---- model ----
class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(256, d_model)
        self.pos = nn.Parameter(0.02 * torch.randn(seq_len, d_model))
        layer = nn.TransformerEncoderLayer(d_model, n_head, 4 * d_model, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, n_layer, enable_nested_tensor=False)
        self.unembed = nn.Linear(d_model, 256)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(seq_len))

    def forward(self, idx):
        h = self.embed(idx) + self.pos
        return self.unembed(self.encoder(h, mask=self.mask, is_causal=True))


def lr_at(step):
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / (max_steps - warmup)))


torch.manual_seed(1337)
model = LM()
print("parameters:", sum(p.numel() for p in model.parameters()))
optimizer = torch.optim.SGD(model.parameters(), lr=base_lr, momentum=0.9)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_at)

for step in range(max_steps):
    rows = chunks[torch.randint(len(chunks), (batch_size,))]
    logits = model(rows[:, :-1])
    loss = F.cross_entropy(logits.reshape(-1, 256), rows[:, 1:].reshape(-1))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    if step % 100 == 0:
        print(f"step {step:5d} | loss {loss.item():.4f} | lr {scheduler.get_last_lr()[0]:.4f}")
