import torch
from torch import nn

model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024))
opt = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
ds = [(torch.randn(512, 1024), torch.randn(512, 1024)) for _ in range(8)]
for ep in range(500):
    for x, y in ds:
        opt.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = (model(x) - y).float().pow(2).mean()
        loss.backward()
        opt.step()
