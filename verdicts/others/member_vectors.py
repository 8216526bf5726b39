import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"

n_members, n_posts, dim = 1_500_000, 500_000, 128
batch = 4096


class TwoTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.members = nn.Embedding(n_members, dim, device=device)
        self.posts = nn.Embedding(n_posts, dim, device=device)
        self.member_mlp = nn.Linear(dim, 64, device=device)
        self.post_mlp = nn.Linear(dim, 64, device=device)

    def forward(self, m, p):
        a = nn.functional.normalize(self.member_mlp(self.members(m)), dim=-1)
        b = nn.functional.normalize(self.post_mlp(self.posts(p)), dim=-1)
        return (a * b).sum(-1) / 0.1


torch.manual_seed(0)
clicks_m = torch.randint(0, n_members, (409_600,), device=device)
clicks_p = torch.randint(0, n_posts, (409_600,), device=device)
clicked = torch.randint(0, 2, (409_600,), device=device).float()

model = TwoTower()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loss_fn = nn.BCEWithLogitsLoss()

for epoch in range(1000):
    perm = torch.randperm(len(clicked), device=device)
    for i in range(0, len(clicked), batch):
        k = perm[i : i + batch]
        optimizer.zero_grad()
        loss = loss_fn(model(clicks_m[k], clicks_p[k]), clicked[k])
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: {loss.item():.4f}")
