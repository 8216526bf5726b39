"""Train a model on a data loader."""

import metrics
import models
import options
import samples
import torch
from torch.nn.functional import mse_loss


def main():
    args = options.parse()
    torch.manual_seed(args.seed)
    model = models.build(args).to(args.device)
    optimizer = options.optimizer(args, model.parameters())
    loader = samples.loader(args)
    kept = metrics.build(args)
    step = 0
    while step < args.steps:
        for x, y in loader:
            x, y = x.to(args.device), y.to(args.device)
            optimizer.zero_grad()
            out = model(x)
            loss = mse_loss(out, y)
            loss.backward()
            optimizer.step()
            kept.update(step, loss, out, y, model)
            step += 1
            if step % 200 == 0:
                print(f"step {step}: loss {loss.item():.4f}", flush=True)
            if step >= args.steps:
                break


if __name__ == "__main__":
    main()
