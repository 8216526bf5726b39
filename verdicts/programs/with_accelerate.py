"""Train a model with Accelerate."""

import models
import options
import samples
import torch
from accelerate import Accelerator


def main():
    args = options.parse()
    torch.manual_seed(args.seed)
    accelerator = Accelerator(cpu=args.device == "cpu")
    model = models.build(args)
    optimizer = options.optimizer(args, model.parameters())
    model, optimizer, loader = accelerator.prepare(model, optimizer, samples.loader(args))
    step = 0
    while step < args.steps:
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step >= args.steps:
                break


if __name__ == "__main__":
    main()
