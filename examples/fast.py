"""The training of slow.py with stoker: each series is scaled once, and a feed cuts the windows."""

import time

import numpy as np
import torch

import stoker

PAST, FUTURE, STRIDE = 96, 24, 24
series = np.load("series.npy")

scaled = np.stack([((values - values.mean()) / values.std()).astype(np.float32) for values in series])
store = stoker.Store.from_arrays(value=scaled)
store.save("scaled.stoker", replace=True)  # for the run that is killed and resumed later
view = stoker.Windows(PAST, horizon=FUTURE, stride=STRIDE, tail="drop")
feed = stoker.Feed(store, view, batch_size=256, order=stoker.Shuffle(seed=0), last_batch="drop")

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(PAST, 64), torch.nn.ReLU(), torch.nn.Linear(64, FUTURE))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
next(iter(feed))  # compiles the kernels, once per machine
losses, start = [], time.perf_counter()
for epoch in range(2):
    feed.set_epoch(epoch)
    for batch in feed:
        loss = torch.nn.functional.mse_loss(model(batch["value"]), batch["value_target"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
print(f"fast.py: {len(losses) / (time.perf_counter() - start):,.0f} steps/s, last loss {losses[-1]:.4f}")
np.save("fast_losses.npy", torch.stack(losses).numpy())
