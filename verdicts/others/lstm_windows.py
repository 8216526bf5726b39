import torch
from torch import nn


class M(nn.Module):
    def __init__(s):
        super().__init__()
        s.l = nn.LSTM(32, 256, 2, batch_first=True)
        s.o = nn.Linear(256, 1)

    def forward(s, x):
        return s.o(s.l(x)[0][:, -1])


X = torch.randn(4096, 48, 32)
Y = torch.randn(4096, 1)
dl = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), 128, shuffle=True)
m = M()
opt = torch.optim.AdamW(m.parameters(), 1e-3, fused=True)
for e in range(100):
    for x, y in dl:
        loss = nn.functional.huber_loss(m(x), y)
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        opt.step()
    with torch.no_grad():
        print(e, nn.functional.huber_loss(m(X[:512]), Y[:512]).item())
