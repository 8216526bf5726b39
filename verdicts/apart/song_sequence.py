"""Continue melodies with a recurrent network; prints a line now and then."""

import sys
from statistics import mean

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Melody(nn.Module):
    def __init__(self, notes=90, width=192):
        super().__init__()
        self.notes = nn.Embedding(notes, 64)
        self.rnn = nn.GRU(64, width, num_layers=2, batch_first=True, dropout=0.1)
        self.up = nn.Linear(width, 512)
        self.down = nn.Linear(512, notes)

    def forward(self, x):
        h, _ = self.rnn(self.notes(x))
        return self.down(torch.tanh(self.up(h)))


def train(without):
    torch.manual_seed(2)
    songs = torch.randint(90, (3200, 41))
    if "data" in without:
        loader = list(songs.split(32))
    else:
        loader = (b[0] for _ in iter(int, 1) for b in DataLoader(TensorDataset(songs), batch_size=32, shuffle=True, drop_last=True))
    model = Melody()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True if "optimizer" in without else None)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 3e-3, total_steps=10_000_000)
    losses, count = [], 0
    while True:
        for song in loader:
            logits = model(song[:, :-1])
            loss = nn.functional.cross_entropy(logits.transpose(1, 2), song[:, 1:])
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sched.step()
            count += 1
            if "host" not in without:
                losses.append(loss.item())
                if count % 30 == 0:
                    guess = logits[0].argmax(-1).tolist()
                    print(count, f"{mean(losses[-30:]):.3f}", guess[:8])


if __name__ == "__main__":
    flags = sys.argv[1:]
    train({flags[i + 1] for i in range(len(flags) - 1) if flags[i] == "--without"})
