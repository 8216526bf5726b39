"""Settings: the YAML of a TFA training run, validated.

The first keys are those of Sentio's trainers. Each means what it means there, or is listed in `IGNORED` with the reason, which a run
reports. A configuration with sizes of a model but no `model` gets the authors' model; one with neither gets the banded one. Unknown
keys and values of the wrong type are errors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from stoker.errors import ConfigError
from stoker.experiment import Document, check, override, read_document

Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Size = Annotated[int, Meta(ge=1, le=2**14)]
"""Size of a part of a model."""
Whole = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(gt=0, lt=1)]
ModelName = Literal["tfa", "tfa-small", "banded"]

SIZES = {"T": "length", "d_model": "width", "nhead": "heads", "num_layers": "layers", "ffn_hidden": "hidden"}
"""Keys of Sentio for the size of a model, and the argument names of the models."""
IGNORED = {
    "num_workers": "threads prepare the batches, and each sample is served once",
    "prefetch_factor": "there are no worker processes; batches are prefetched by threads",
    "pin_memory": "the feed pins memory itself where there is a GPU",
    "persistent_workers": "there are no worker processes",
    "feature_cache": "features are computed from the bars, which takes less than reading a cache and checking it",
    "label_kind": "labels are the direction of the close, 1 or 0",
    "regime_balancing": "each dataset is sampled as often as its `weight` says",
    "cross_regime_validation": "validation and score are later in time than the training rows, over all datasets",
    "regime_specific_metrics": "metrics are over all datasets together",
}
"""Keys of Sentio without effect here, and why."""
MARKS = ("bars_csv", "feature_spec", "datasets", "feature_cache", "label_horizon", *SIZES)
"""Keys that only configurations of this recipe have."""
LEVERAGED = frozenset(
    "TQQQ SQQQ QLD QID UPRO SPXU SPXL SPXS SSO SDS UDOW SDOW DDM DXD TNA TZA UWM TWM SOXL SOXS TECL TECS FAS FAZ LABU LABD "
    "TMF TMV UBT TBT NUGT DUST JNUG JDST YINN YANG ERX ERY GUSH DRIP NAIL DRN DRV CURE RETL FNGU FNGD BULZ BERZ UVXY SVXY "
    "UVIX SVIX BOIL KOLD UCO SCO AGQ ZSL UGL GLL TSLL TSLQ NVDL NVDQ PSQ SH DOG RWM".split()
)
"""Leveraged and inverse funds: their price is a daily multiple of another and decays."""


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """What a run has where its YAML says nothing."""

    length: int  # rows of a window
    run: int  # consecutive labels of a sample: windows of a longer run share more computation, shorter runs mix better
    batch_size: int  # labels
    epochs: int
    lr: float
    patience: int
    schedule: str


_THEIRS = Defaults(length=48, run=64, batch_size=1024, epochs=25, lr=2e-3, patience=5, schedule="constant")
DEFAULTS = {
    "tfa": _THEIRS,
    "tfa-small": replace(_THEIRS, length=32),
    "banded": Defaults(length=48, run=240, batch_size=480, epochs=4, lr=3e-3, patience=2, schedule="one-cycle"),
}
"""Those of the authors for their models, faster ones for ours."""
ACCUMULATE = 4  # batches of one update of the authors' trainer of one series; that of several series has one


class DatasetSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of several series."""

    path: str
    """CSV of its bars."""
    regime: str = ""
    """Name of the series."""
    weight: Positive = 1.0
    """How often its windows are sampled, relative to the others."""
    description: str = ""
    """For readers; not used."""


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a TFA training run; `read_settings` reads them from a YAML file."""

    symbol: str | None = None
    """Symbol of the bars; leveraged funds are an error."""
    bars_csv: str | None = None
    """CSV of the bars; or use `datasets`."""
    datasets: list[DatasetSettings] | None = None
    """Several series, each with the CSV of its bars."""
    feature_spec: str
    """JSON with the indicators."""
    feature_cache: str | None = None
    """Ignored: features are computed from the bars."""
    out_dir: str | None = None
    """Folder of the run; by default `runs/` and the name of the YAML."""
    batch_size: Count | None = None
    """Labels of one batch; `grad_accum_steps` batches make an update."""
    epochs: Count | None = None
    """Passes over the training rows, at most."""
    lr: Positive | None = None
    """Learning rate."""
    num_workers: Whole = 0
    """Ignored: threads prepare the batches."""
    prefetch_factor: Whole | None = None
    """Ignored: there are no worker processes."""
    pin_memory: bool | None = None
    """Ignored: the feed pins memory itself where there is a GPU."""
    persistent_workers: bool | None = None
    """Ignored: there are no worker processes."""
    T: Annotated[int, Meta(ge=2, le=4096)] | None = None
    """Rows of a window; of the banded model, rows that one layer sees."""
    d_model: Size | None = None
    """Width of the model."""
    nhead: Size | None = None
    """Attention heads."""
    num_layers: Annotated[int, Meta(ge=1, le=256)] | None = None
    """Layers."""
    ffn_hidden: Size | None = None
    """Width of the feed-forward layers."""
    hidden: Size | None = None
    """The same in an older trainer of Sentio; ignored where no other size is given."""
    label_horizon: Count = 1
    """Bars ahead whose direction is predicted."""
    label_kind: str | None = None
    """Ignored: labels are the direction of the close, 1 or 0."""
    cutoff_bp: NotNegative = 0.0
    """`price_change_threshold` in basis points, in an older trainer of Sentio; the larger of the two is used."""
    min_volume_threshold: NotNegative = 0.0
    """Labels need at least this volume at the bar ahead."""
    price_change_threshold: NotNegative = 0.0
    """Labels need at least this change of the logarithm of the close."""
    train_split: Share | None = None
    """Share of the training rows; the rest is halved for validation and score."""
    early_stopping_patience: Count | None = None
    """Epochs without a better validation loss after which training stops."""
    gradient_clip_norm: Positive = 1.0
    """Largest norm of the gradients."""
    max_training_hours: Positive | None = None
    """Time after which training stops."""
    regime_balancing: bool | None = None
    """Ignored: each dataset is sampled as often as its `weight` says."""
    cross_regime_validation: bool | None = None
    """Ignored: validation and score are later in time, over all datasets."""
    regime_specific_metrics: bool | None = None
    """Ignored: metrics are over all datasets together."""
    weight_decay: NotNegative = 0.01
    """Weight decay of AdamW."""
    model: ModelName | None = None
    """`banded`, `tfa` (the default where sizes are given) or `tfa-small`."""
    positions: bool | None = None
    """Whether the model has position embeddings; the banded one always knows the order of rows."""
    stationary: bool | None = None
    """Whether prices become ratios to the close within the model; by default with `banded`."""
    mode: Literal["exact", "sentio"] | None = None
    """Arithmetic of the indicators; by default that of the spec."""
    labels: Literal["masked", "compat"] = "masked"
    """Rows without a clear direction are masked; with `compat` they are 0, as in Sentio's trainer."""
    pos_weight: Literal["auto", "train", "none"] = "auto"
    """Weight of labels 1, from the training rows; `auto` only with `labels: compat`, where they are rare."""
    split: list[Share] = msgspec.field(default_factory=lambda: [0.7, 0.15, 0.15])
    """Shares of train, validation and score."""
    embargo: Whole | None = None
    """Rows between windows and the boundary before them; by default the minimum without leaks."""
    gaps: Literal["refuse", "cut", "allow"] = "refuse"
    """Series with missing bars: an error, `cut` into several series, or allowed."""
    run: Count | None = None
    """Consecutive labels per sample, which share the computation of their rows."""
    schedule: Literal["constant", "one-cycle"] | None = None
    """Learning rate schedule; by default `one-cycle` with `banded`."""
    grad_accum_steps: Count | None = None
    """Batches of one update; by default 4 for their model on one series, as in their trainer, else 1."""
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    """Seed of the weights and of the sample order."""
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = "auto"
    """Precision of the model; `auto` is bf16 on a GPU and fp32 on a CPU."""
    threads: Annotated[int, Meta(ge=1, le=1024)] | None = None
    """CPU threads of a step, which affect the bits of the weights; by default 1 with `banded`, else torch's default."""
    device: str | None = None
    """`cpu` or `cuda`; by default a GPU where there is one."""

    @property
    def chosen_model(self) -> ModelName:
        """The model, by default according to the given sizes."""
        if self.model is not None:
            return self.model
        return "tfa" if any(getattr(self, key) is not None for key in SIZES) else "banded"

    @property
    def usual(self) -> Defaults:
        """The defaults of the model."""
        return DEFAULTS[self.chosen_model]

    @property
    def length(self) -> int:
        """Rows of a window."""
        return self.T or self.usual.length

    @property
    def batches_per_update(self) -> int:
        """Batches of one update: the authors' number for the authors' model, where nothing else is said."""
        theirs = self.chosen_model != "banded" and self.datasets is None
        return self.grad_accum_steps or (ACCUMULATE if theirs else 1)

    @property
    def model_options(self) -> dict[str, Any]:
        """The given sizes of the model but its window, and whether it has positions."""
        options: dict[str, Any] = {name: size for name, size in self.sizes.items() if name != "length"}
        has_positions = self.positions is not None and self.chosen_model != "banded"
        return options | ({"positions": self.positions} if has_positions else {})

    @property
    def sizes(self) -> dict[str, int]:
        """The given sizes, by the argument names of the models."""
        sizes = {name: getattr(self, key) for key, name in SIZES.items() if getattr(self, key) is not None}
        if self.hidden is not None and (sizes or self.model is not None):
            sizes.setdefault("hidden", self.hidden)
        return sizes

    @property
    def least_change(self) -> float:
        """Least change of the logarithm of the close for a label."""
        return max(self.price_change_threshold, self.cutoff_bp / 10_000)

    @property
    def fractions(self) -> tuple[float, float, float]:
        """Shares of train, validation and score."""
        if self.train_split is not None:
            rest = (1 - self.train_split) / 2
            return (self.train_split, rest, rest)
        train, valid, score = self.split
        return train, valid, score

    @property
    def sources(self) -> list[DatasetSettings]:
        """All series, also where there is only one."""
        if self.datasets is not None:
            return self.datasets
        return [DatasetSettings(path=self.bars_csv or "", regime=self.symbol or "")]


def ignored(settings: Settings) -> list[str]:
    """A sentence for each given key that has no effect."""
    without_effect = {key: value for key in IGNORED if (value := getattr(settings, key))}
    said = [f"{key}: {'true' if value is True else value} is ignored: {IGNORED[key]}" for key, value in without_effect.items()]
    if settings.hidden is not None and not settings.sizes:
        why = "it is the width of a network on one row, which is a baseline of the score"
        said.append(f"hidden: {settings.hidden} is ignored: {why}")
    if any(dataset.description for dataset in settings.datasets or ()):
        said.append("datasets: description is ignored: it is for readers")
    return said


def is_tfa(tree: Mapping[str, Any]) -> bool:
    """Whether a configuration is for this recipe."""
    return "data" not in tree and any(key in tree for key in MARKS)


def read_settings(path: Path, *, assignments: Sequence[str] = ()) -> Settings:
    """Read the settings of a training run from a YAML file.

    Args:
        path: The YAML. Paths in it are relative to its folder, or to the current one where the spec is there.
        assignments: Overrides such as "lr=1e-3".

    Returns:
        The settings, with resolved paths.

    Raises:
        ConfigError: A key is unknown or a value invalid; the error names file and line.
    """
    document = read_document(path)
    return settings_of(document, path, assignments=assignments)


def settings_of(document: Document, path: Path, *, assignments: Sequence[str] = ()) -> Settings:
    """The settings of a document, with resolved paths."""
    settings = check(override(document, assignments, Settings), Settings)
    _refuse(document, settings)
    base = _base(document, settings.feature_spec, path)
    located = map_paths(settings, lambda name: str(base / Path(name).expanduser()))
    out_dir = located.out_dir or str(Path("runs") / path.stem)
    return msgspec.structs.replace(located, feature_spec=str(base / settings.feature_spec), out_dir=out_dir)


def map_paths(settings: Settings, change: Callable[[str], str]) -> Settings:
    """The settings with all paths but that of the spec changed by a function."""
    paths = {name: path for name in ("bars_csv", "out_dir") if (path := getattr(settings, name)) is not None}
    changed: dict[str, Any] = {name: change(path) for name, path in paths.items()}
    if settings.datasets is not None:
        changed["datasets"] = [msgspec.structs.replace(dataset, path=change(dataset.path)) for dataset in settings.datasets]
    return msgspec.structs.replace(settings, **changed)


def _refuse(document: Document, settings: Settings) -> None:
    """Raise an error for values that are invalid beyond their type."""
    for key in ("bars_csv", "feature_spec", "out_dir"):
        if "\0" in (getattr(settings, key) or ""):
            raise ConfigError(f"{document.place((key,))}: {key} holds a NUL character, which is invalid in a path. Remove it.")
    if settings.device is not None and not re.fullmatch(r"cpu|cuda(:\d{1,3})?", settings.device):
        raise ConfigError(f"{document.place(('device',))}: device is {settings.device!r}; expected cpu, cuda or cuda:N.")
    if (settings.bars_csv is None) == (settings.datasets is None):
        problem = "both are given" if settings.bars_csv is not None else "neither is given"
        raise ConfigError(f"{document.name}: bars come from bars_csv or datasets; {problem}. Give one of them.")
    if settings.datasets is not None and not settings.datasets:
        raise ConfigError(f"{document.place(('datasets',))}: datasets is empty; expected at least one path.")
    if len(settings.split) != 3 or sum(settings.split) > 1 + 1e-9:
        problem = f"{len(settings.split)} numbers with the sum {sum(settings.split):.6g}"
        expected = "three shares (train, validation, score) with a sum of at most 1"
        raise ConfigError(f"{document.place(('split',))}: split has {problem}; expected {expected}.")
    if None not in (settings.hidden, settings.ffn_hidden) and settings.hidden != settings.ffn_hidden:
        raise ConfigError(
            f"{document.place(('hidden',))}: hidden is {settings.hidden}, but ffn_hidden is {settings.ffn_hidden}; both are the "
            "width of the feed-forward layers. Give one of them."
        )
    if settings.symbol is not None and settings.symbol.upper() in LEVERAGED:
        raise ConfigError(f"{document.place(('symbol',))}: symbol is {settings.symbol}, {WHY_LEVERAGED}")


WHY_LEVERAGED = (
    "which is a leveraged or inverse fund: its price decays, and its indicators are not those of a market. "
    "Train on the index that it follows."
)


def _base(document: Document, spec: str, path: Path) -> Path:
    """The folder that paths are relative to."""
    places = list(dict.fromkeys([path.parent, Path()]))
    for folder in places:
        if (folder / spec).is_file():
            return folder
    tried = " nor ".join(dict.fromkeys(str(folder / spec) for folder in places))
    raise ConfigError(
        f"{document.place(('feature_spec',))}: feature_spec is {spec!r}, but there is no {tried}. Give the path of the spec."
    )
