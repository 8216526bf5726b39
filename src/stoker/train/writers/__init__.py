"""Writers: where the numbers of a run go.

    writer       what a writer can do, and how training is kept safe from one that fails
    jsonl        metrics.jsonl, always
    tensorboard, wandb, mlflow      optional: imported when one is made, each an extra of stoker

A writer that is ours can be made by its name: `make_writer("tensorboard", folder="runs/tfa")`.
"""

from stoker.train.writers.choose import NAMES, make_writer
from stoker.train.writers.jsonl import JsonLines
from stoker.train.writers.mlflow import Mlflow
from stoker.train.writers.tensorboard import TensorBoard
from stoker.train.writers.wandb import Wandb
from stoker.train.writers.writer import Writer, Writers

__all__ = ["NAMES", "JsonLines", "Mlflow", "TensorBoard", "Wandb", "Writer", "Writers", "make_writer"]
