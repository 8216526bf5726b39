# next-item prediction over a large catalogue: a bag of recent items in, all items out
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

n_items, d, history = 60_000, 64, 10
torch.manual_seed(0)
seen = torch.randint(0, n_items, (8_000, history))
nxt = torch.randint(0, n_items, (8_000,))
dl = DataLoader(TensorDataset(seen, nxt), batch_size=8, shuffle=True)


class NextItem(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(n_items, d, mode="mean")
        self.hidden = nn.Sequential(nn.Linear(d, d), nn.ReLU())
        self.out = nn.Linear(d, n_items)

    def forward(self, ids):
        return self.out(self.hidden(self.bag(ids)))


model = NextItem()
opt = torch.optim.RMSprop(model.parameters(), lr=1e-4, momentum=0.9, centered=True, weight_decay=1e-6)
lossf = nn.CrossEntropyLoss()
for epoch in range(20):
    for n, (ids, target) in enumerate(dl, 1):
        logits = model(ids)
        loss = lossf(logits, target)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if n % 200 == 0:
            hits = (logits.topk(20).indices == target[:, None]).any(1).float().mean().item()
            print(epoch, n, f"{loss.item():.3f}", f"hit@20 {hits:.2f}")
