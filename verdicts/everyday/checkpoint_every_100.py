"""The model is saved every 100 steps."""

import io
import sys
import tempfile

import torch
import torch.nn as nn

FIXED = "--fixed" in sys.argv
torch.manual_seed(0)

model = nn.Sequential(nn.Linear(128, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
X, Y = torch.randn(6400, 128), torch.randn(6400, 1)

loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=64, shuffle=True)


big = nn.Linear(2000, 4000)
folder = tempfile.mkdtemp()


def checkpoint():
    state = {"model": model.state_dict(), "big": big.state_dict(), "optimizer": optimizer.state_dict()}
    buffer = io.BytesIO()
    for _ in range(6):
        buffer.seek(0)
        torch.save(state, buffer)
    with open(folder + "/last.pt", "wb") as f:
        f.write(buffer.getvalue())


step = 0
for epoch in range(10000):
    for x, y in loader:
        loss = ((model(x) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if not FIXED and step % 100 == 0:
            for _ in range(4):
                checkpoint()
