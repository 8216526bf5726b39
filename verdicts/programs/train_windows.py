"""Train a model on random windows of one long series, a batch at a time, as small language models are trained."""

import metrics
import models
import numpy as np
import options
import torch
from torch.nn.functional import mse_loss


def get_batch(series, args):
    starts = torch.randint(len(series) - args.time - 1, (args.batch,))
    if args.samples == "memory":
        places = starts[:, None] + torch.arange(args.time)
        held = torch.from_numpy(series)
        return held[places], held[starts + args.time, 0]
    windows = []
    for start in starts.tolist():
        window = series[start : start + args.time].astype(np.float64)
        window = (window - window.mean(0)) / (window.std(0) + 1e-6)
        low, high = np.quantile(window, 0.01), np.quantile(window, 0.99)
        windows.append(torch.from_numpy(np.clip(window, low, high).astype(np.float32)))
    targets = [torch.tensor(series[start + args.time, 0]) for start in starts.tolist()]
    return torch.stack(windows), torch.stack(targets)


args = options.parse()
torch.manual_seed(args.seed)
series = np.random.default_rng(args.seed).standard_normal((args.rows, args.features), dtype=np.float32)
model = models.build(args).to(args.device)
optimizer = options.optimizer(args, model.parameters())
kept = metrics.build(args)
step = 0
while True:
    x, y = get_batch(series, args)
    x, y = x.to(args.device), y.to(args.device)
    out = model(x)
    loss = mse_loss(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    kept.update(step, loss, out, y, model)
    step += 1
    if step >= args.steps:
        break
print(f"loss {loss.item():.4f}")
