"""Training: batches become steps.

    trainer     Trainer: what a run consists of             settings    its options, declared once
    stream      what a trainer asks of its batches
    fit         epochs, validation, saving; callbacks       engine      setups, measured and chosen; autotune: the test
    loss, step  loss functions; one update of the weights   graph       steps as CUDA graphs
    ema         the EMA of the weights                      activation_checkpointing  less memory, more time
    numerics    precision, loss scale, the NaN guard        distributed ranks: DDP and FSDP
    optimizer   fused optimizers, learning rates, Muon      early_stopping  when to stop
    schedule    learning rates                              metrics     AUC, means, and those of torchmetrics
    checkpoint  checkpoints on disk; state_dict, resume, fingerprint: what they hold, and what must be the same
    run         the folder of a run; loggers, plots         export      weights and programs of a run

It takes any iterable of batches, and knows neither feed nor store. These are the public names; each is imported when first used.
"""

from typing import TYPE_CHECKING

from stoker._lazy import lazy

if TYPE_CHECKING:
    from stoker.train.autotune import Setup as Setup
    from stoker.train.autotune import Trial as Trial
    from stoker.train.callbacks import Callback as Callback
    from stoker.train.callbacks import CallbackReport as CallbackReport
    from stoker.train.early_stopping import EarlyStopping as EarlyStopping
    from stoker.train.ema import Ema as Ema
    from stoker.train.export import Exported as Exported
    from stoker.train.export import export_model as export_model
    from stoker.train.export import load_trained as load_trained
    from stoker.train.fit import Result as Result
    from stoker.train.loggers import TensorBoard as TensorBoard
    from stoker.train.loggers import Wandb as Wandb
    from stoker.train.loggers import Writer as Writer
    from stoker.train.loss import supervised as supervised
    from stoker.train.metrics import AUC as AUC
    from stoker.train.metrics import Mean as Mean
    from stoker.train.metrics import Metric as Metric
    from stoker.train.optimizer import orthogonalize as orthogonalize
    from stoker.train.plots import Curve as Curve
    from stoker.train.plots import Panel as Panel
    from stoker.train.plots import check_plot as check_plot
    from stoker.train.plots import save_plot as save_plot
    from stoker.train.run import remove_run as remove_run
    from stoker.train.schedule import Constant as Constant
    from stoker.train.schedule import Cosine as Cosine
    from stoker.train.schedule import Inverse as Inverse
    from stoker.train.schedule import Linear as Linear
    from stoker.train.schedule import OneCycle as OneCycle
    from stoker.train.schedule import StepDecay as StepDecay
    from stoker.train.settings import Checkpoints as Checkpoints
    from stoker.train.settings import Execution as Execution
    from stoker.train.settings import Logging as Logging
    from stoker.train.trainer import Trainer as Trainer
else:
    # Hidden from type checkers: a module with __getattr__ would have every name, misspelt ones too.
    __getattr__, __dir__, __all__ = lazy(__name__)
