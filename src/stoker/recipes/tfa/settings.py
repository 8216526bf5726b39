"""Settings: the YAML of a TFA training, theirs or ours, as one checked value.

The first keys are those of Sentio's trainers. Each means what it means there, or is listed in `IGNORED` with the reason, and a run
reports it. A configuration that gives sizes of a model and no model means the authors' model; one that gives neither gets the
banded one. Unknown keys and values of a wrong type are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from stoker.errors import ConfigError
from stoker.experiment.parse import Document, check, override, read_document, rename_keys

Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Size = Annotated[int, Meta(ge=1, le=2**14)]
"""Of a part of a model: what is larger would not fit into any memory."""
Whole = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(gt=0, lt=1)]
ModelName = Literal["tfa", "tfa-small", "banded"]

SIZES = {"T": "length", "d_model": "width", "nhead": "heads", "num_layers": "layers", "ffn_hidden": "hidden"}
"""Keys of theirs that say how large a model is, and what models call them."""
IGNORED = {
    "num_workers": "threads prepare the batches, and each sample is served once",
    "prefetch_factor": "there are no worker processes; batches are prefetched by threads",
    "pin_memory": "the feed pins memory itself where there is a GPU",
    "persistent_workers": "there are no worker processes",
    "label_kind": "labels are the direction of the close, 1 or 0",
    "regime_balancing": "each dataset is sampled as often as its `weight` says",
    "cross_regime_validation": "validation and score are later in time than the training rows, over all datasets",
    "regime_specific_metrics": "metrics are over all datasets together",
}
"""Keys of theirs that change nothing here, and why."""
MARKS = ("bars_csv", "feature_spec", "datasets", "feature_cache", "label_horizon", *SIZES)
"""Keys that no other configuration has."""
LEVERAGED = frozenset(
    "TQQQ SQQQ QLD QID UPRO SPXU SPXL SPXS SSO SDS UDOW SDOW DDM DXD TNA TZA UWM TWM SOXL SOXS TECL TECS FAS FAZ LABU LABD "
    "TMF TMV UBT TBT NUGT DUST JNUG JDST YINN YANG ERX ERY GUSH DRIP NAIL DRN DRV CURE RETL FNGU FNGD BULZ BERZ UVXY SVXY "
    "UVIX SVIX "
    "BOIL KOLD UCO SCO AGQ ZSL UGL GLL TSLL TSLQ NVDL NVDQ PSQ SH DOG RWM".split()
)
"""Symbols whose price is a daily multiple of another: their paths decay, and their indicators are those of the multiple."""


class Dataset(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One series of several."""

    path: str
    """CSV of its bars."""
    regime: str = ""
    """What it is called."""
    weight: Positive = 1.0
    """How often its windows come, next to those of the others."""
    description: str = ""
    """For readers; not used."""


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A TFA training."""

    symbol: str | None = None
    """Whose bars they are; leveraged ones are refused."""
    bars_csv: str | None = None
    """CSV of the bars; or `datasets`."""
    datasets: list[Dataset] | None = None
    """Several series, each with the CSV of its bars."""
    feature_spec: str
    """JSON that says which indicators are computed."""
    feature_cache: str | None = None
    """A store that `stoker indicators` made of these bars and this spec; other caches are not read."""
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
    """Heads of its attention."""
    num_layers: Annotated[int, Meta(ge=1, le=256)] | None = None
    """Its layers."""
    ffn_hidden: Size | None = None
    """Width within a layer."""
    hidden: Size | None = None
    """The same, as an older trainer of theirs calls it; ignored where no other size is given (their network of one row)."""
    label_horizon: Count = 1
    """Bars ahead whose direction is predicted."""
    label_kind: str | None = None
    """Ignored: labels are the direction of the close, 1 or 0."""
    cutoff_bp: NotNegative = 0.0
    """`price_change_threshold` in basis points, as an older trainer of theirs calls it; the larger of the two counts."""
    min_volume_threshold: NotNegative = 0.0
    """Labels need at least this volume at the bar ahead."""
    price_change_threshold: NotNegative = 0.0
    """Labels need at least this change of the logarithm of the close."""
    train_split: Share | None = None
    """Share of the time that trains; the rest is halved for validation and score."""
    early_stopping_patience: Count | None = None
    """Epochs in a row without a better validation after which it stops."""
    gradient_clip_norm: Positive = 1.0
    """Largest norm of the gradients."""
    max_training_hours: Positive | None = None
    """Time after which it ends."""
    regime_balancing: bool | None = None
    """Ignored: each dataset is sampled as often as its `weight` says."""
    cross_regime_validation: bool | None = None
    """Ignored: validation and score are later in time, over all datasets."""
    regime_specific_metrics: bool | None = None
    """Ignored: metrics are over all datasets together."""
    weight_decay: NotNegative = 0.01
    """Of AdamW."""
    model: ModelName | None = None
    """`banded`, or `tfa` (the default where sizes are given) and `tfa-small`."""
    positions: bool | None = None
    """Whether the model knows the order of the rows of a window; the banded one always does."""
    stationary: bool | None = None
    """Whether prices become ratios to the close within the model; by default with `banded`."""
    mode: Literal["exact", "sentio"] | None = None
    """Arithmetic of the indicators; by default what the spec says."""
    labels: Literal["masked", "compat"] = "masked"
    """Rows without a clear direction are masked; `compat` calls them 0, as the trainer did."""
    pos_weight: Literal["auto", "train", "none"] = "auto"
    """Weight of labels 1, from the training rows; `auto` only with `labels: compat`, where they are rare."""
    split: list[Share] = msgspec.field(default_factory=lambda: [0.7, 0.15, 0.15])
    """Shares of train, validation and score."""
    embargo: Whole | None = None
    """Rows that windows keep from the boundary before them; by default the least that is needed."""
    gaps: Literal["refuse", "cut", "allow"] = "refuse"
    """What becomes of series with missing bars: `cut` makes series of their pieces."""
    run: Count | None = None
    """Consecutive labels of one sample, which share what is computed of their rows."""
    schedule: Literal["constant", "one-cycle"] | None = None
    """How the learning rate goes; by default `one-cycle` with `banded`."""
    grad_accum_steps: Count | None = None
    """Batches of one update; by default 4 for their model on one series, as in their trainer, else 1."""
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    """Decides weights and order."""
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = "auto"
    """Of the calculations; `auto` is bf16 on a GPU and fp32 on a CPU."""
    threads: Annotated[int, Meta(ge=1, le=1024)] | None = None
    """Of a step on a CPU, which decide bits of the weights; by default one with `banded`, else as many as torch takes."""
    device: str | None = None
    """`cpu` or `cuda`; by default a GPU where there is one."""

    @property
    def chosen_model(self) -> ModelName:
        """The model that is meant."""
        if self.model is not None:
            return self.model
        return "tfa" if any(getattr(self, key) is not None for key in SIZES) else "banded"

    @property
    def sizes(self) -> dict[str, int]:
        """What is said of the size of the model, as models call it."""
        found = {name: getattr(self, key) for key, name in SIZES.items() if getattr(self, key) is not None}
        if self.hidden is not None and (found or self.model is not None):
            found.setdefault("hidden", self.hidden)
        return found

    @property
    def least_change(self) -> float:
        """Of the logarithm of the close, for a label."""
        return max(self.price_change_threshold, self.cutoff_bp / 10_000)

    @property
    def fractions(self) -> tuple[float, float, float]:
        """Shares of train, validation and score."""
        if self.train_split is not None:
            rest = (1 - self.train_split) / 2
            return (self.train_split, rest, rest)
        train, valid, score = self.split
        return (train, valid, score)

    @property
    def sources(self) -> list[Dataset]:
        """All series, also where there is one."""
        if self.datasets is not None:
            return self.datasets
        return [Dataset(path=self.bars_csv or "", regime=self.symbol or "")]


def ignored(settings: Settings) -> list[str]:
    """A sentence for each key that was given and changes nothing."""
    said = [f"{key}: {_written(value)} is ignored: {why}" for key, why in IGNORED.items() if (value := getattr(settings, key))]
    if settings.hidden is not None and not settings.sizes:
        said.append(
            f"hidden: {settings.hidden} is ignored: it is the width of a network of one row, which the score has as a baseline"
        )
    if any(one.description for one in settings.datasets or ()):
        said.append("datasets: description is ignored: it is for readers")
    return said


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def is_tfa(tree: Mapping[str, Any]) -> bool:
    """Whether a configuration is one of this recipe."""
    return "data" not in tree and any(key in tree for key in MARKS)


def read_settings(path: Path, *, assignments: Sequence[str] = ()) -> Settings:
    """Read a YAML; paths in it are from its folder, or from the current one where that has the spec."""
    document = read_document(path)
    if (path.parent / "recipe.json").is_file():  # the folder of a run, perhaps of an earlier version
        document = rename_keys(document, {"accumulate": "grad_accum_steps"})
    return settings_of(document, path, assignments=assignments)


def settings_of(document: Document, path: Path, *, assignments: Sequence[str] = ()) -> Settings:
    """The settings that a document means, with whole paths."""
    settings = check(override(document, assignments, Settings), Settings)
    _refuse(document, settings)
    base = _base(document, settings.feature_spec, path)

    def found(name: str | None) -> str | None:
        return None if name is None else str(base / Path(name).expanduser())

    return msgspec.structs.replace(
        settings,
        bars_csv=found(settings.bars_csv),
        datasets=None
        if settings.datasets is None
        else [msgspec.structs.replace(one, path=str(found(one.path))) for one in settings.datasets],
        feature_spec=str(base / settings.feature_spec),
        feature_cache=found(settings.feature_cache),
        out_dir=found(settings.out_dir) or str(Path("runs") / path.stem),
    )


def _refuse(document: Document, settings: Settings) -> None:
    """What the type of each value alone allows, but its meaning or another value does not."""
    for key in ("bars_csv", "feature_spec", "feature_cache", "out_dir"):
        if "\0" in (getattr(settings, key) or ""):
            raise ConfigError(f"{document.place((key,))}: {key} holds a NUL character, which no path can. Remove it.")
    if settings.device is not None and not re.fullmatch(r"cpu|cuda(:\d{1,3})?", settings.device):
        raise ConfigError(f"{document.place(('device',))}: device is {settings.device!r}; expected cpu, cuda or cuda:N.")
    if (settings.bars_csv is None) == (settings.datasets is None):
        found = "both are there" if settings.bars_csv is not None else "there is neither"
        raise ConfigError(f"{document.name}: bars come from bars_csv or from datasets; {found}. Give one of them.")
    if settings.datasets is not None and not settings.datasets:
        raise ConfigError(f"{document.place(('datasets',))}: datasets is empty; expected at least one path.")
    if len(settings.split) != 3 or sum(settings.split) > 1 + 1e-9:
        found = f"{len(settings.split)} numbers with the sum {sum(settings.split):.6g}"
        raise ConfigError(
            f"{document.place(('split',))}: split has {found}; expected the shares of train, validation and score, 1 at most "
            "together."
        )
    if None not in (settings.hidden, settings.ffn_hidden) and settings.hidden != settings.ffn_hidden:
        raise ConfigError(
            f"{document.place(('hidden',))}: hidden is {settings.hidden}, but ffn_hidden is {settings.ffn_hidden}; both are the "
            "width within a layer. Give one of them."
        )
    if settings.symbol is not None and settings.symbol.upper() in LEVERAGED:
        raise ConfigError(f"{document.place(('symbol',))}: symbol is {settings.symbol}, {WHY_LEVERAGED}")


WHY_LEVERAGED = (
    "which is a leveraged or inverse fund: its price decays, and its indicators are not those of a market. "
    "Train on what it follows."
)


def _base(document: Document, spec: str, path: Path) -> Path:
    """The folder that paths are from."""
    places = list(dict.fromkeys([path.parent, Path()]))
    for folder in places:
        if (folder / spec).is_file():
            return folder
    tried = " nor ".join(dict.fromkeys(str(folder / spec) for folder in places))
    raise ConfigError(
        f"{document.place(('feature_spec',))}: feature_spec is {spec!r}, but there is no {tried}. Give the path of the spec."
    )
