"""Train a model in several processes, started by torchrun; each has its part of the rows."""

import metrics
import models
import options
import samples
import torch
from torch import distributed
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel


def main():
    args = options.parse()
    distributed.init_process_group("gloo" if args.device == "cpu" else "nccl")
    rank = distributed.get_rank()
    torch.manual_seed(args.seed)
    model = DistributedDataParallel(models.build(args).to(args.device))
    optimizer = options.optimizer(args, model.parameters())
    args.seed += rank
    kept = metrics.build(args) if rank == args.keeper else metrics.Nothing()
    if args.last_samples and rank == distributed.get_world_size() - 1:
        args.samples = args.last_samples
    loader = samples.loader(args)
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
            if step >= args.steps:
                break
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
