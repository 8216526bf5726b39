import torch


class Bad(torch.utils.data.Dataset):
    def __len__(self):
        return 100000

    def __getitem__(self, i):
        if self.n == 3000:
            raise ValueError("broken record in shard 7")
        self.n += 1
        return torch.randn(64)

    n = 0


net = torch.nn.Linear(64, 64)
opt = torch.optim.Adam(net.parameters())
for x in torch.utils.data.DataLoader(Bad(), batch_size=32, shuffle=True):
    loss = (net(x) - x).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
