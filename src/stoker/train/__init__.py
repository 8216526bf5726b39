"""Train: batches become steps.

    loss, step, graph           what is made smaller; one update, eagerly or as CUDA graphs
    precision, optimizer, recompute, choice, engine      how steps are done, and how that is found out by measuring
    fit, trainer, stream, evaluation, result             a training in progress, and what a user has of it
    readout, log, progress, writers/, metrics/           numbers, on the device and on their way to people
    schedule, ema, stopping                              what goes along with a training
    rng, state, checkpoint, checkpoints, snapshot, facts, signals      what survives
    run, record, machine, runs                           the folder of a run
    weights, export                                      what a run has learned, as weights or as a program

It takes any iterable of batches, and knows neither feed nor store. These are the public names; each is imported when first used.
"""

from typing import TYPE_CHECKING

from stoker.lazy import lazy

_LAZY = {
    "AUC": "stoker.train.metrics.auc:AUC",
    "Accuracy": "stoker.train.metrics.accuracy:Accuracy",
    "Constant": "stoker.train.schedule:Constant",
    "Cosine": "stoker.train.schedule:Cosine",
    "Curve": "stoker.train.chart:Curve",
    "EarlyStopping": "stoker.train.stopping:EarlyStopping",
    "Ema": "stoker.train.ema:Ema",
    "Inverse": "stoker.train.schedule:Inverse",
    "Linear": "stoker.train.schedule:Linear",
    "MAE": "stoker.train.metrics.distance:MAE",
    "MSE": "stoker.train.metrics.distance:MSE",
    "Mean": "stoker.train.metrics.mean:Mean",
    "Metric": "stoker.train.metrics.metric:Metric",
    "Mlflow": "stoker.train.writers.mlflow:Mlflow",
    "OneCycle": "stoker.train.schedule:OneCycle",
    "Panel": "stoker.train.chart:Panel",
    "QuantileLoss": "stoker.train.metrics.distance:QuantileLoss",
    "Result": "stoker.train.result:Result",
    "Setup": "stoker.train.choice:Setup",
    "Steps": "stoker.train.schedule:Steps",
    "TensorBoard": "stoker.train.writers.tensorboard:TensorBoard",
    "Trainer": "stoker.train.trainer:Trainer",
    "Trial": "stoker.train.choice:Trial",
    "Wandb": "stoker.train.writers.wandb:Wandb",
    "Writer": "stoker.train.writers.writer:Writer",
    "check_picture": "stoker.train.plot:check_picture",
    "Exported": "stoker.train.export:Exported",
    "export_model": "stoker.train.export:export_model",
    "load_trained": "stoker.train.weights:load_trained",
    "save_picture": "stoker.train.plot:save_picture",
    "save_svg": "stoker.train.plot:save_svg",
    "supervised": "stoker.train.loss:supervised",
}

if TYPE_CHECKING:
    from stoker.train.chart import Curve as Curve
    from stoker.train.chart import Panel as Panel
    from stoker.train.choice import Setup as Setup
    from stoker.train.choice import Trial as Trial
    from stoker.train.ema import Ema as Ema
    from stoker.train.export import Exported as Exported
    from stoker.train.export import export_model as export_model
    from stoker.train.loss import supervised as supervised
    from stoker.train.metrics.accuracy import Accuracy as Accuracy
    from stoker.train.metrics.auc import AUC as AUC
    from stoker.train.metrics.distance import MAE as MAE
    from stoker.train.metrics.distance import MSE as MSE
    from stoker.train.metrics.distance import QuantileLoss as QuantileLoss
    from stoker.train.metrics.mean import Mean as Mean
    from stoker.train.metrics.metric import Metric as Metric
    from stoker.train.plot import check_picture as check_picture
    from stoker.train.plot import save_picture as save_picture
    from stoker.train.plot import save_svg as save_svg
    from stoker.train.result import Result as Result
    from stoker.train.schedule import Constant as Constant
    from stoker.train.schedule import Cosine as Cosine
    from stoker.train.schedule import Inverse as Inverse
    from stoker.train.schedule import Linear as Linear
    from stoker.train.schedule import OneCycle as OneCycle
    from stoker.train.schedule import Steps as Steps
    from stoker.train.stopping import EarlyStopping as EarlyStopping
    from stoker.train.trainer import Trainer as Trainer
    from stoker.train.weights import load_trained as load_trained
    from stoker.train.writers.mlflow import Mlflow as Mlflow
    from stoker.train.writers.tensorboard import TensorBoard as TensorBoard
    from stoker.train.writers.wandb import Wandb as Wandb
    from stoker.train.writers.writer import Writer as Writer
else:
    # Hidden from type checkers: a module with __getattr__ would have every name, misspelt ones too.
    __getattr__, __dir__, __all__ = lazy(__name__, _LAZY)
