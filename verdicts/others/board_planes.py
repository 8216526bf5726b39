import random

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset, random_split

PIECES = "PNBRQKpnbrqk"
VALUES = {"p": 1, "n": 3, "b": 3, "r": 5, "q": 9, "k": 0}
STRAIGHT = ((0, 1), (1, 0), (0, -1), (-1, 0))
DIAGONAL = ((1, 1), (1, -1), (-1, 1), (-1, -1))
RAYS = {"r": STRAIGHT, "b": DIAGONAL, "q": STRAIGHT + DIAGONAL}


def random_position():
    rows = []
    for _ in range(8):
        row, gap = "", 0
        for _ in range(8):
            if random.random() < 0.4:
                row += (str(gap) if gap else "") + random.choice(PIECES)
                gap = 0
            else:
                gap += 1
        rows.append(row + (str(gap) if gap else ""))
    return "/".join(rows)


def material(position):
    total = 0
    for ch in position:
        if ch.isalpha():
            total += VALUES[ch.lower()] * (1 if ch.isupper() else -1)
    return total / 10


def encode(position):
    """Twelve planes of pieces, and two of the squares that sliding pieces attack."""
    planes = np.zeros((14, 8, 8), dtype=np.float32)
    board = {}
    for r, row in enumerate(position.split("/")):
        c = 0
        for ch in row:
            if ch.isdigit():
                c += int(ch)
            else:
                planes[PIECES.index(ch), r, c] = 1.0
                board[r, c] = ch
                c += 1
    for (r, c), ch in board.items():
        side = 12 if ch.isupper() else 13
        for dr, dc in RAYS.get(ch.lower(), ()):
            rr, cc = r + dr, c + dc
            while 0 <= rr < 8 and 0 <= cc < 8:
                planes[side, rr, cc] += 1.0
                if (rr, cc) in board:
                    break
                rr += dr
                cc += dc
    return planes


class Positions(Dataset):
    def __init__(self, n):
        self.positions = [random_position() for _ in range(n)]
        self.values = torch.tensor([material(p) for p in self.positions])

    def __len__(self):
        return len(self.positions)

    def __getitem__(self, idx):
        return torch.from_numpy(encode(self.positions[idx])), self.values[idx]


class ValueNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(14 * 64, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, planes):
        return self.net(planes).squeeze(1)


def validate(model, loader):
    model.eval()
    with torch.no_grad():
        losses = [nn.functional.mse_loss(model(x), y).item() for x, y in loader]
    model.train()
    return sum(losses) / len(losses)


def main():
    random.seed(0)
    torch.manual_seed(0)
    train_set, valid_set = random_split(Positions(18_432), [17_920, 512])
    train_loader = DataLoader(train_set, batch_size=64, shuffle=True)
    valid_loader = DataLoader(valid_set, batch_size=64)
    model = ValueNet()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=5)
    for epoch in range(600):
        for planes, value in train_loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(planes), value)
            loss.backward()
            optimizer.step()
        score = validate(model, valid_loader)
        plateau.step(score)
        print(f"{epoch:3d} train {loss.item():.4f} valid {score:.4f} lr {optimizer.param_groups[0]['lr']:.4f}")


if __name__ == "__main__":
    main()
