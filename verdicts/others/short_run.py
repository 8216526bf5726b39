import torch

net = torch.nn.Linear(512, 512)
opt = torch.optim.SGD(net.parameters(), 0.1)
for i in range(5):
    x = torch.randn(256, 512)
    loss = net(x).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(i, loss.item())
torch.save(net.state_dict(), "five.pt")
print("done")
