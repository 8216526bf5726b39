"""A typical forecasting script. Its mistake: for every sample it scales the whole series to cut one window from it."""

import time

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

PAST, FUTURE, STRIDE = 96, 24, 24
series = np.load("series.npy")  # [40 sensors, 20,000 hours]
shuffled = np.load("order.npy")  # [2 epochs, samples]: the shuffle of fast.py, so that losses can be compared


class WindowDataset(Dataset):
    def __init__(self):
        self.per_series = (series.shape[1] - PAST - FUTURE) // STRIDE + 1

    def __len__(self):
        return len(series) * self.per_series

    def __getitem__(self, index):
        row, window = divmod(index, self.per_series)
        values = series[row]
        values = ((values - values.mean()) / values.std()).astype(np.float32)
        start = window * STRIDE
        return values[start : start + PAST], values[start + PAST : start + PAST + FUTURE]


torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(PAST, 64), torch.nn.ReLU(), torch.nn.Linear(64, FUTURE))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses, start = [], time.perf_counter()
for order in shuffled:
    for past, future in DataLoader(WindowDataset(), batch_size=256, sampler=order):
        loss = torch.nn.functional.mse_loss(model(past), future)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
print(f"slow.py: {len(losses) / (time.perf_counter() - start):,.0f} steps/s, last loss {losses[-1]:.4f}")
np.save("slow_losses.npy", torch.stack(losses).numpy())
