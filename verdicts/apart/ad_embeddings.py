"""Click prediction with one large table of embeddings and Adam over all of its rows."""

import sys

import torch
import torch.nn.functional as F

FLAGS = sys.argv[1:]
removed = lambda name: name in FLAGS
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(12)
rows, dim, fields, size = (3_000_000, 32, 22, 2048) if device == "cuda" else (120_000, 16, 10, 128)


class Clicks(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(rows, dim, sparse=removed("optimizer"))
        self.top = torch.nn.Sequential(torch.nn.Linear(fields * dim, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))

    def forward(self, ids):
        return self.top(self.table(ids).flatten(1)).squeeze(1)


model = Clicks().to(device)
if removed("optimizer"):
    optimizers = [torch.optim.SparseAdam(model.table.parameters(), 1e-3), torch.optim.Adam(model.top.parameters(), 1e-3)]
else:
    optimizers = [torch.optim.Adam(model.parameters(), 1e-3)]
loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(torch.randint(rows, (size * 60, fields)), (torch.rand(size * 60) < 0.04).float()),
    batch_size=size, shuffle=True, pin_memory=device == "cuda",
)  # fmt: skip
ready = [[part.to(device) for part in batch] for batch in loader] if removed("data") else None
seen = 0
while True:
    for ids, clicked in ready or loader:
        loss = F.binary_cross_entropy_with_logits(model(ids.to(device, non_blocking=True)), clicked.to(device, non_blocking=True))
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        if not removed("sync"):
            seen += loss.item()
        for optimizer in optimizers:
            optimizer.step()
