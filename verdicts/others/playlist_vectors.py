import torch
from torch import nn

N_TRACKS = 120_000
N_LISTS = 30_000
DIM = 48


class PlaylistModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.track = nn.Embedding(N_TRACKS, DIM)
        self.playlist = nn.Embedding(N_LISTS, DIM)
        self.track_bias = nn.Embedding(N_TRACKS, 1)
        nn.init.normal_(self.track.weight, std=0.05)
        nn.init.normal_(self.playlist.weight, std=0.05)
        nn.init.zeros_(self.track_bias.weight)

    def score(self, p, t):
        return (self.playlist(p) * self.track(t)).sum(-1) + self.track_bias(t).squeeze(-1)


def bpr_loss(model, p, pos, neg):
    return -nn.functional.logsigmoid(model.score(p, pos) - model.score(p, neg)).mean()


torch.manual_seed(11)
pl = torch.randint(0, N_LISTS, (200_000,))
tr = torch.randint(0, N_TRACKS, (200_000,))

model = PlaylistModel()
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(30):
    order = torch.randperm(len(pl))
    for b, idx in enumerate(order.split(1000)):
        neg = torch.randint(0, N_TRACKS, (len(idx),))
        loss = bpr_loss(model, pl[idx], tr[idx], neg)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if b % 50 == 0:
            print(f"epoch {epoch} [{b * 1000}/{len(pl)}] bpr {loss.item():.4f}")
