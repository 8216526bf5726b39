import glob

import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class ChurnDataset(Dataset):
    def __init__(self, df, features, target):
        self.df = df.reset_index(drop=True)
        self.features = features
        self.target = target

    def __len__(self):
        return len(self.df)

    def __getitem__(self, idx):
        row = self.df.iloc[idx]
        x = torch.tensor([float(row[c]) for c in self.features])
        y = torch.tensor(row[self.target], dtype=torch.float32)
        return x, y


class ChurnModel(nn.Module):
    def __init__(self, n_in):
        super().__init__()
        self.layers = nn.Sequential(
            nn.BatchNorm1d(n_in),
            nn.Linear(n_in, 64),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(64, 32),
            nn.ReLU(),
            nn.Linear(32, 1),
        )

    def forward(self, x):
        return self.layers(x).squeeze(-1)


def load():
    parts = []
    for path in sorted(glob.glob("data/pq/*.parquet")):
        part = pd.read_parquet(path)
        part["user"] = path[-11:-8]
        part["roll"] = part["f0"].rolling(10, min_periods=1).mean()
        parts.append(part)
    return pd.concat(parts)


def main():
    df = load()
    feats = [c for c in df.columns if c.startswith("f")] + ["roll"]
    train_df = df[df.user.astype(int) < 36]
    valid_df = df[(df.user.astype(int) >= 36) & (df.t % 2 == 0)]
    train_dl = DataLoader(ChurnDataset(train_df, feats, "y"), batch_size=100, shuffle=True)
    valid_dl = DataLoader(ChurnDataset(valid_df, feats, "y"), batch_size=100)

    model = ChurnModel(len(feats))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    loss_fn = nn.BCEWithLogitsLoss()
    history = []
    for epoch in range(200):
        model.train()
        for xb, yb in train_dl:
            loss = loss_fn(model(xb), yb)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            val_loss = sum(loss_fn(model(xb), yb).item() for xb, yb in valid_dl) / len(valid_dl)
        history.append({"epoch": epoch, "loss": loss.item(), "val_loss": val_loss})
        pd.DataFrame(history).to_csv("churn_history.csv", index=False)
        print(history[-1])


if __name__ == "__main__":
    main()
