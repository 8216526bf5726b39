"""Train a model on a stream of batches from a generator."""

import metrics
import models
import options
import samples
import torch
from torch import nn


def main():
    args = options.parse()
    torch.manual_seed(args.seed)
    model = models.build(args)
    model.to(args.device)
    criterion = nn.MSELoss()
    optimizer = options.optimizer(args, model.parameters())
    kept = metrics.build(args)
    for step, (x, y) in enumerate(samples.stream(args)):
        out = model(x.to(args.device))
        y = y.to(args.device)
        loss = criterion(out, y)
        kept.update(step, loss, out, y, model)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step + 1 >= args.steps:
            break
    print(f"done: {loss.item():.4f}")


main()
