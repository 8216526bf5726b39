"""The config of a training run: one frozen struct, whose sections are `data`, `split`, `model`, `loss`, `optimizer`, `schedule`, `train`.

Types hold the limits of values, and the text below a field is its documentation: `stoker train --fields` shows it. Schedules and
the options of `train` are those of `stoker.train`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from stoker.feed.residency import Loading
from stoker.train import schedule as schedules
from stoker.train.schedule import Choice, Constant, Updates
from stoker.train.settings import Count, Positive, TrainerSettings

MANY = 2**48
Whole = Annotated[int, Meta(ge=0, le=MANY)]
Size = Annotated[int, Meta(ge=1, lt=2**31)]
"""Of something that is held in memory."""
Share = Annotated[float, Meta(ge=0, lt=1)]
ValidShare = Annotated[float, Meta(gt=0, lt=1)]


class WindowView(Choice, frozen=True, kw_only=True, tag="windows"):
    """Windows of equal length."""

    length: Count
    """Steps that the model sees."""
    stride: Count = 1
    """Steps from one window to the next."""
    horizon: Whole = 0
    """Steps after a window that are predicted."""
    shift: Whole = 0
    """Each step predicts the step that is this many later; instead of a horizon."""
    tail: Literal["keep", "drop"] = "keep"
    """A last window that is not full is padded and masked, or dropped."""
    max_gap: Annotated[int, Meta(ge=1)] | str | None = None
    """Larger distances in time are not spanned: a frequency like `2h`, or an integer in the unit of the time column."""
    gaps: Literal["break"] | None = None
    """`break`: a `max_gap` of the frequency that the store was packed with."""


class SegmentView(Choice, frozen=True, kw_only=True, tag="segments"):
    """Series cut into consecutive pieces."""

    length: Count
    """Steps that the model sees."""
    horizon: Whole = 0
    """Steps after a segment that are predicted."""
    shift: Whole = 0
    """Each step predicts the step that is this many later; instead of a horizon."""
    tail: Literal["keep", "drop"] = "keep"
    """A last segment that is not full is padded and masked, or dropped."""
    max_gap: Annotated[int, Meta(ge=1)] | str | None = None
    """Larger distances in time are not spanned: a frequency like `2h`, or an integer in the unit of the time column."""
    gaps: Literal["break"] | None = None
    """`break`: a `max_gap` of the frequency that the store was packed with."""


class SequenceView(Choice, frozen=True, kw_only=True, tag="sequences"):
    """Each series is one sample, padded to `max_length`."""

    max_length: Size
    """Longer series are cut to it."""
    buckets: Annotated[list[Size], Meta(min_length=1)] | None = None
    """Widths that batches may have; by default the one of `max_length`, so that all have one shape."""
    keep: Literal["first", "last", "random"] = "first"
    """Which steps of a longer series stay; random ones differ in every epoch."""


class SequentialOrder(Choice, frozen=True, kw_only=True, tag="sequential"):
    """Samples as they are stored."""


class ShuffleOrder(Choice, frozen=True, kw_only=True, tag="shuffle"):
    """Every sample once per epoch, in random order."""


class BlockOrder(Choice, frozen=True, kw_only=True, tag="block"):
    """The same for data larger than memory: neighbours are read together, but come apart."""

    block: Count | None = None
    """Samples of a block; chosen by default."""
    window: Count | None = None
    """Samples that are mixed together; chosen by default."""


class LengthOrder(Choice, frozen=True, kw_only=True, tag="by_length"):
    """Like a shuffle, but samples of similar length share a batch."""

    pool: Count = 100
    """Groups that are sorted by length together."""


class SeriesScale(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Each series by its own training steps, inside the feed."""

    per: Literal["series"] = "series"
    """What has a scale of its own."""
    method: Literal["standard", "robust", "minmax", "meanabs"] = "standard"
    """Mean and deviation, median and quartiles, smallest and largest value, or mean of absolute values."""
    unseen: Literal["error", "global"] = "error"
    """Series without a training step are refused, or get the mean of the scales of the others."""


class StoreCache(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where blocks of remote stores are kept."""

    folder: str | None = None
    """Folder, which several stores and processes may share; by default one of this user."""
    size: str | int | None = None
    """How much it may hold, like `200GB`; by default 3/4 of the free space."""


class Data(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is fed."""

    store: str | Annotated[list[str], Meta(min_length=1)]
    """Path of the store, as `stoker pack` makes it, or a URL like `s3://bucket/events.stoker`; or a list of them, whose samples are
    mixed."""
    view: WindowView | SegmentView | SequenceView
    """What a sample is."""
    batch_size: Size
    """Samples per batch and process."""
    global_batch_size: Count | None = None
    """Samples per update, of all processes: a multiple of `batch_size`, instead of `grad_accum_steps`. It is kept by any number of
    processes. Default with torchrun: that of the processes at the start."""
    columns: Annotated[list[str], Meta(min_length=1)] | None = None
    """Input columns of the model: numbers and categories, per step or per series. By default all numeric columns with one value per step,
    except a target of the same step."""
    known: Annotated[list[str], Meta(min_length=1)] | None = None
    """Columns whose values in the predicted steps are known, such as prices, holidays or a weather forecast. The model sees them with the
    steps of the sample, and those of the horizon as `<name>_target`."""
    target: Annotated[list[str], Meta(min_length=1)] | None = None
    """Columns that are predicted: with a horizon or shift their future, otherwise their value at the last step or of the series."""
    weights: Annotated[list[Positive], Meta(min_length=1)] | None = None
    """Of several stores: the share of each in every part of an epoch; by default their numbers of samples, so that all come once."""
    valid_store: str | Annotated[list[str], Meta(min_length=1)] | None = None
    """Path of a store, or of several, to validate on; instead of a split."""
    test_store: str | Annotated[list[str], Meta(min_length=1)] | None = None
    """Path of a store, or of several, on which the trained model is evaluated once, at the end."""
    order: SequentialOrder | ShuffleOrder | BlockOrder | LengthOrder = ShuffleOrder()
    """Order of the training samples; validation is sequential."""
    scale: bool | Literal["per_series"] | SeriesScale | None = None
    """Centre and scale columns by the steps of the training samples, inside the model; by default, unless `normalize` is set.
    `per_series`, or `{per: series, method: robust}`: each series by its own training steps, inside the feed."""
    normalize: Literal["zero", "max"] | None = None
    """Centre and scale ("zero"), or scale ("max"), each series by its own values; not with a split by time, which it would leak."""
    observed: bool = False
    """Missing values (NaN) become 0 after scaling. The model also sees a mask of the values that are there, and missing targets do
    not count."""
    dtype: Literal["float32", "float64"] = "float32"
    """Type that float columns are converted to."""
    loading: Loading = Loading()
    """Where the columns stay, and how batches are prefetched."""
    where: str | None = None
    """Only series of each store that fulfil this condition over their own values, like "country == 'DE' and num_steps >= 100"."""
    augment: str | None = None
    """Function `f(batch, rng)` that augments training batches on the device, as `file.py:function`; it is run: name only code you trust."""
    cache: StoreCache | None = None
    """Where blocks of stores at a URL are kept: `{folder: /nvme/stoker, size: 200GB}`."""


class Chronological(Choice, frozen=True, kw_only=True, tag="chronological"):
    """Earlier steps train, later ones validate, the last ones are kept for a test."""

    valid: ValidShare = 0.15
    """Share of the steps that validate."""
    test: Share = 0.0
    """Share of the steps that are kept for a test, and never fed here."""
    horizon: Whole | None = None
    """Steps after a sample that its targets depend on; by default those of the view."""
    warm_up: Whole = 0
    """Steps before a sample that its features depend on, such as the window of an indicator."""
    embargo: Whole | None = None
    """Steps that samples keep from the boundary before them; by default the least that is needed."""
    overlap: Literal["inputs"] | None = None
    """`inputs` lets later windows look back over a boundary with their inputs; targets never overlap. By default no step is shared."""
    time: str | None = None
    """Column of times by which to cut; by default that of the store."""


class Grouped(Choice, frozen=True, kw_only=True, tag="grouped"):
    """Whole series train or validate."""

    valid: ValidShare = 0.15
    """Share of the series that validate."""
    test: Share = 0.0
    """Share of the series that are kept for a test, and never fed here."""
    by: str | None = None
    """Series with the same value of this column stay together."""


class ByValue(Choice, frozen=True, kw_only=True, tag="by_value"):
    """Whole series by the value of a column, such as the file that they come from."""

    column: str
    """Column with one value per series; `stoker pack --name-column` makes one of file names."""
    train: str | Annotated[list[str], Meta(min_length=1)]
    """Value, or values, of the series to train on; patterns such as `*_TRAIN.ts` are possible."""
    valid: str | Annotated[list[str], Meta(min_length=1)] | None = None
    """Value, or values, of the series to validate on."""
    test: str | Annotated[list[str], Meta(min_length=1)] | None = None
    """Value, or values, of the series on which the trained model is evaluated once, at the end."""


AnySplit = Chronological | Grouped | ByValue


# The sections `model` and `loss`: builtin ones by name with their options, or functions of the user's own.

Layers = Annotated[int, Meta(ge=1, le=1000)]


class TransformerConfig(Choice, frozen=True, kw_only=True, tag="transformer"):
    """Attention over the steps, with learned positions."""

    width: Size = 128
    """Embedding size of a step."""
    layers: Layers = 3
    """Blocks of attention and feed-forward."""
    heads: Size = 8
    """Attention heads; `width` must be divisible by their number."""
    hidden: Size | None = None
    """Hidden size of the feed-forward layers; by default twice the width."""
    dropout: Share = 0.0
    """Dropout in training."""
    causal: bool | None = None
    """Whether a step attends only to earlier steps. Default: true with a `shift`, which requires it; otherwise false."""


class GruConfig(Choice, frozen=True, kw_only=True, tag="gru"):
    """A recurrent network of gated recurrent units."""

    width: Size = 128
    """Hidden size."""
    layers: Layers = 2
    """Stacked layers."""
    dropout: Share = 0.0
    """Dropout between layers in training."""


class MlpConfig(Choice, frozen=True, kw_only=True, tag="mlp"):
    """All steps at once through fully connected layers."""

    width: Size = 256
    """Size of a hidden layer."""
    layers: Layers = 2
    """Hidden layers."""
    dropout: Share = 0.0
    """Dropout in training."""


class LinearConfig(Choice, frozen=True, kw_only=True, tag="linear"):
    """One matrix from all steps to the prediction: the baseline to beat."""


class Own(Choice, frozen=True, kw_only=True, tag="own"):
    """Your own function. It is executed: name only code that you trust."""

    function: str
    """Where it is, as `file.py:function`, from the folder in which the command runs."""
    options: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments that it gets; and `task`, if it has a parameter of that name."""


class Mse(Choice, frozen=True, kw_only=True, tag="mse"):
    """Mean of squared errors."""


class Mae(Choice, frozen=True, kw_only=True, tag="mae"):
    """Mean of absolute errors."""


class Huber(Choice, frozen=True, kw_only=True, tag="huber"):
    """Squared for small errors, absolute for large ones."""

    delta: Annotated[float, Meta(gt=0)] = 1.0
    """Error at which the loss changes from squared to absolute."""


class Bce(Choice, frozen=True, kw_only=True, tag="bce"):
    """Binary cross-entropy; predictions are logits, targets between 0 and 1."""

    positive_weight: Annotated[float, Meta(gt=0)] = 1.0
    """Weight of positive samples, like `pos_weight` of `BCEWithLogitsLoss`."""


class CrossEntropy(Choice, frozen=True, kw_only=True, tag="cross_entropy"):
    """Cross-entropy for one target column with class indices from 0; negative ones are missing and do not count."""

    classes: Annotated[int, Meta(ge=2, lt=2**31)] | None = None
    """Number of classes; not needed for a category column."""
    smoothing: Share = 0.0
    """Label smoothing."""


class Quantile(Choice, frozen=True, kw_only=True, tag="quantile"):
    """Pinball loss; each target is predicted once per quantile."""

    quantiles: Annotated[tuple[Annotated[float, Meta(gt=0, lt=1)], ...], Meta(min_length=1)] = (0.1, 0.5, 0.9)
    """Quantiles to predict."""


AnyModel = TransformerConfig | GruConfig | MlpConfig | LinearConfig | Own
AnyLoss = Mse | Mae | Huber | Bce | CrossEntropy | Quantile | Own


Rate = Annotated[float, Meta(ge=0)]


class _Optimizer(Choice, frozen=True, kw_only=True):
    lr: Rate = 1e-3
    """Learning rate."""
    weight_decay: Rate = 0.0
    """Weight decay coefficient."""


class AdamW(_Optimizer, frozen=True, kw_only=True, tag="adamw"):
    """Adam with decoupled weight decay."""

    weight_decay: Rate = 0.01
    betas: tuple[Share, Share] = (0.9, 0.999)
    """Decay rates of the running means of the gradient and of its square."""
    eps: Positive = 1e-8
    """Added to the denominator for numerical stability."""


class Adam(AdamW, frozen=True, kw_only=True, tag="adam"):
    """Adam; weight decay is added to the gradient (L2 penalty)."""

    weight_decay: Rate = 0.0


class Sgd(_Optimizer, frozen=True, kw_only=True, tag="sgd"):
    """Stochastic gradient descent with momentum."""

    lr: Rate = 1e-2
    momentum: Share = 0.9
    """Momentum factor."""
    nesterov: bool = False
    """Use Nesterov momentum."""


class RmsProp(_Optimizer, frozen=True, kw_only=True, tag="rmsprop"):
    """RMSprop: gradients divided by the root of their running mean square."""

    momentum: Share = 0.0
    """Momentum factor."""
    alpha: Share = 0.99
    """Decay rate of the running mean square of the gradients."""


class WarmInverse(schedules.Inverse, frozen=True, kw_only=True, tag="inverse"):
    """Up during the warm-up, then down with the square root of the number of updates."""

    warmup: Updates = 4000


AnySchedule = Constant | schedules.Linear | schedules.Cosine | schedules.OneCycle | schedules.StepDecay | WarmInverse
AnyOptimizer = AdamW | Adam | Sgd | RmsProp


# The section `train`, and the config.

Metric = Annotated[
    str,
    Meta(
        pattern=r"^(mae|mse|accuracy|auc|torchmetrics:[A-Za-z][\w.]*)$",
        description="one of mae, mse, accuracy, auc, or torchmetrics:NAME",
    ),
]


class EarlyStoppingConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When to stop before the last epoch."""

    metric: str = "val_loss"
    """Metric to monitor."""
    patience: Count = 5
    """Evaluations in a row without an improvement after which it stops."""
    mode: Literal["min", "max"] | None = None
    """Whether a lower or a higher value is better; by default inferred from the name."""
    min_delta: Rate = 0.0
    """Minimum change that counts as an improvement."""
    restore_best: bool = True
    """The model has its best weights when the run has stopped early or has finished; otherwise the last ones."""


class Train(TrainerSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the run goes: the options of the trainer, and some that are named here."""

    epochs: Count = 1
    """Passes over the training samples."""
    max_seconds: Positive | None = None
    """Time after which the run is saved and ends."""
    folder: Annotated[str, Meta(min_length=1)] | None = None
    """Folder of the run; by default `runs/` and the name of the config."""
    device: str | None = None
    """`cpu`, `cuda` or `cuda:1`; by default a GPU where there is one."""
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    """Seed of weights, order and dropout."""
    metrics: list[Metric] = field(default_factory=list)
    """What is measured in evaluation, in addition to the loss: `auc`; of torchmetrics (extra `metrics`) `mae`, `mse`, `accuracy` and
    all that need no arguments, such as `torchmetrics:MeanAbsolutePercentageError`."""
    early_stopping: EarlyStoppingConfig | None = None
    """When to stop before the last epoch."""
    loggers: list[Literal["tensorboard", "wandb"]] = field(default_factory=list)
    """Where metrics go in addition to metrics.jsonl."""


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The config of a training run."""

    data: Data
    """What is fed."""
    split: AnySplit | None = None
    """Which samples are held out for validation and test; by default none."""
    model: AnyModel
    """What is trained."""
    loss: AnyLoss = Mse()
    """What is minimized."""
    optimizer: AnyOptimizer = AdamW()
    """How weights are updated."""
    schedule: AnySchedule = Constant()
    """How the learning rate changes."""
    train: Train = Train()
    """How the run goes."""
