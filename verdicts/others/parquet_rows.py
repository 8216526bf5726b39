import glob

import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FEATS = [f"f{j}" for j in range(12)]


class Events(Dataset):
    def __init__(self):
        self.paths = sorted(glob.glob("data/pq/*.parquet"))
        self.index = [(p, t) for p in self.paths for t in range(50, 500, 5)]

    def __len__(self):
        return len(self.index)

    def __getitem__(self, i):
        path, t = self.index[i]
        df = pd.read_parquet(path)
        w = df.iloc[t - 50 : t]
        return torch.tensor(w[FEATS].values), torch.tensor(float(w["y"].iloc[-1]))


model = nn.Sequential(nn.Flatten(), nn.Linear(600, 128), nn.ReLU(), nn.Linear(128, 1))
opt = torch.optim.AdamW(model.parameters(), 1e-3)
loader = DataLoader(Events(), batch_size=16, shuffle=True, num_workers=2)
if __name__ == "__main__":
    step = 0
    for epoch in range(50):
        for x, y in loader:
            opt.zero_grad()
            l = nn.functional.binary_cross_entropy_with_logits(model(x).squeeze(1), y)
            l.backward()
            opt.step()
            step += 1
            if step % 50 == 0:
                print(step, float(l))
