"""Make the data of the example: rows to train on, and rows that are held out."""

import torch

generator = torch.Generator().manual_seed(11)
x = torch.randn(900, 8, generator=generator)
y = (x[:, :2].sum(1) + x[:, 2] * x[:, 3]).tanh()[:, None] + 0.3 * torch.randn(900, 1, generator=generator)
torch.save((x[:600], y[:600]), "train.pt")
torch.save((x[600:], y[600:]), "valid.pt")
