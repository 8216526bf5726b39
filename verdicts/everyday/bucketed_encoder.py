"""A transformer over event sequences of many lengths, padded to the longest of a batch, with Accelerate."""

import sys

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

FIXED = "--fixed" in sys.argv
torch.manual_seed(0)
lengths = torch.distributions.LogNormal(4.0, 0.7).sample((2000,)).clamp(8, 320).long().tolist()
events = [(torch.randn(length, 16), number % 3) for number, length in enumerate(lengths)]


def collate(rows):
    return pad_sequence([row[0] for row in rows], batch_first=True), torch.tensor([row[1] for row in rows])


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embed = nn.Linear(16, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, dropout=0.0)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        return self.head(self.body(self.embed(x)).mean(1))


accelerator = Accelerator(cpu=True)
model = Model(16 if FIXED else 128)
optimizer = torch.optim.AdamW(model.parameters())
loader = torch.utils.data.DataLoader(events, batch_size=8, shuffle=True, collate_fn=collate)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
while True:
    for x, y in loader:
        optimizer.zero_grad()
        accelerator.backward(cross_entropy(model(x), y))
        optimizer.step()
