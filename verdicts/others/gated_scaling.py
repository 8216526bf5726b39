import torch

w = torch.nn.Parameter(torch.ones(256))
b = torch.nn.Parameter(torch.zeros(256))
a = torch.nn.Parameter(torch.ones(256))
opt = torch.optim.Adam([w, b, a], lr=1e-3)
data = torch.randn(8, 8192, 256)


def model(x):
    h = x * w + b
    h = h.clamp(-3, 3) + 0.1 * h
    h = h * a + x
    h = torch.where(h > 0, h, 0.01 * h)
    return h - h.mean(-1, keepdim=True)


for step in range(4000):
    x = data[step % 8]
    loss = (model(x) - x).abs().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 50 == 0:
        print(step, loss.item())
