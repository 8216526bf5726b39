"""The options of this project's training runs."""

import argparse

import torch


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--features", type=int, default=32)
    parser.add_argument("--time", type=int, default=32)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--categories", type=int, default=1000)
    parser.add_argument("--size", type=int, default=16)
    parser.add_argument("--sparse", action="store_true")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--samples", default="memory")
    parser.add_argument("--rows-a-file", type=int, default=256)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--worker-threads", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--optimizer", default="sgd")
    parser.add_argument("--implementation", default="foreach")
    parser.add_argument("--metrics", default="none")
    parser.add_argument("--detail", type=int, default=1)
    parser.add_argument("--tf32", action="store_true")
    parser.add_argument("--keeper", type=int, default=0)
    parser.add_argument("--last-samples", default="")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    return args


def optimizer(args, parameters):
    """The optimizer that the arguments ask for."""
    torch.set_float32_matmul_precision("high" if args.tf32 else "highest")
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "rmsprop": torch.optim.RMSprop}
    ways = {"foreach": {"foreach": True}, "loop": {"foreach": False}, "fused": {"fused": True}, "default": {}}
    way = {} if args.sparse else ways[args.implementation]
    return kinds[args.optimizer](parameters, lr=1e-4, **way)
