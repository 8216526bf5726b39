"""The program that the agent edits. It writes model.pt, and never sees valid.pt."""

import torch

torch.manual_seed(0)
x, y = torch.load("train.pt")
model = torch.nn.Sequential(torch.nn.Linear(8, 24), torch.nn.ReLU(), torch.nn.Linear(24, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(5):
    for rows in torch.randperm(len(x)).split(32):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
torch.jit.script(model).save("model.pt")
