"""Bundles: a trained model as a folder with all that serving needs, and `BarPredictor`, which serves it bar by bar.

    bundle.json            description, and the hash of each file
    feature_spec.json      the features, identified by their hash
    model.safetensors      the weights, with the scaler
    model.pt2              a program of torch.export: raw features [batch, rows, features] -> logits [batch]
    model.onnx             the same for other runtimes, if requested
    model.pt               the same as TorchScript, logits [batch, 1], for Sentio's C++, which also reads
    model.meta.json        what it expects: features, window, warm-up
    metadata.json          the same for the C++ that serves bar by bar
    golden.safetensors     bars with their features and logits

`write_bundle` checks the bundle on the golden bars, in one batch and bar by bar: features must be equal bit for bit, logits within
1e-6. `verify_bundle` repeats that. A changed file, another spec or another window is an error.
"""

from __future__ import annotations

import hashlib
import inspect
import io
import json
import math
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
import torch
from torch import nn

import stoker
import stoker_recipes.tfa
from stoker.errors import CheckpointInvalidError, ConfigError, OptionError, TrainError
from stoker.extend import Array, disk
from stoker_recipes.tfa.data import BARS_NAME, PRICES, read_bars, warm_up_of, without_compat
from stoker_recipes.tfa.model import KNOWN, SMALL, Banded, Tfa, TfaModel, build_model, levels_of
from stoker_recipes.tfa.settings import Settings, read_settings
from stoker_recipes.tfa.training import CONFIG_NAME, SCORE_NAME, SPEC_NAME, using

BUNDLE_NAME, WEIGHTS_NAME, PROGRAM_NAME, GOLDEN_NAME = "bundle.json", "model.safetensors", "model.pt2", "golden.safetensors"
PROGRAM_GOLDEN_NAME = f"{PROGRAM_NAME}.golden.safetensors"
ONNX_NAME, SCRIPT_NAME, META_NAME, SERVING_NAME = "model.onnx", "model.pt", "model.meta.json", "metadata.json"
SIGN = b'"format": "stoker-tfa"'  # the beginning of bundle.json
GOLDEN_ROWS = 64  # logits that are checked
TOLERANCE = 1e-6  # largest difference of a logit from that of the batch, relative to the larger of 1 and the largest logit


class Bundle(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of bundle.json."""

    format: str = "stoker-tfa"
    version: int = 1
    symbol: str | None
    model: str
    sizes: dict[str, int | bool]
    length: int  # rows of a window; for the banded model, rows that one layer sees
    reach: int  # rows that a logit needs
    stationary: bool
    features: list[str]
    spec_hash: str
    arithmetic: str
    warm_up: int  # bars before the first row with all features
    label: dict[str, float]  # horizon and thresholds of the labels
    step: int  # updates of the weights
    score: dict[str, Any]
    files: dict[str, str]  # SHA-256 of each file


@dataclass(frozen=True, kw_only=True)
class Proof:
    """The result of a check on golden bars."""

    rows: int  # rows of features that are equal bit for bit in a batch and bar by bar
    logits: int
    difference: float  # the largest of a logit bar by bar from that of the batch


def build_of(bundle: Bundle, spec: dict[str, Any]) -> TfaModel:
    """The model of a bundle, without its weights."""
    width = len(bundle.features)
    levels = levels_of(spec["features"]) if bundle.stationary else None
    options: dict[str, Any] = {"mean": torch.zeros(width), "std": torch.ones(width), **bundle.sizes}
    return build_model(bundle.model, num_features=width, length=bundle.length, levels=levels, **options).eval()


@dataclass(frozen=True, kw_only=True)
class _Trained:
    """The model of a run, and golden bars with their features and logits."""

    bundle: Bundle
    spec: dict[str, Any]
    model: TfaModel
    golden: dict[str, Array]

    @property
    def windows(self) -> torch.Tensor:
        """Rows of golden features as windows [16, rows, features]."""
        view = np.lib.stride_tricks.sliding_window_view(self.golden["features"], self.bundle.reach, axis=0)
        return torch.from_numpy(view.transpose(0, 2, 1)[:16].copy())


@using(1)  # single rows are too small for threads
def write_bundle(
    run: str | Path, target: str | Path, *, latest: bool = False, onnx: bool = False, overwrite: bool = False
) -> tuple[Bundle, Proof]:
    """Write the model of a run as a bundle, and check it on golden bars.

    Args:
        run: Folder of the run.
        target: A new or empty folder, or with `overwrite` a bundle.
        latest: Use the latest checkpoint instead of the best.
        onnx: Also write model.onnx, which is checked with onnxruntime.
        overwrite: Replace a bundle at `target`.

    Returns:
        The content of bundle.json, and the result of the check.

    Raises:
        ConfigError: `run` is not the folder of a run.
        OptionError: `target` holds something else, or a bundle without `overwrite`.
        TrainError: The check failed; nothing is written.
    """
    target = Path(target)
    disk.claim_folder(target, marker=BUNDLE_NAME, sign=SIGN, advice="Give a new folder for the bundle.")
    before = _listed(target)
    if before and not overwrite:
        raise OptionError(
            f"{target} has a bundle already. Pass overwrite=True to replace it, or choose another folder.", parameter="overwrite"
        )
    new = target / ".new"  # written and checked there, so that a failed or killed export leaves the old bundle as it was
    try:
        disk.remove_folder(new)
        disk.make_folder(new)
        bundle = _write_files(_read_run(Path(run), latest=latest), new, onnx=onnx)
        proof = verify_bundle(new)
        disk.write_file(target / BUNDLE_NAME, b"{" + SIGN + b"}\n")  # neither the old bundle nor the new one
        for name in before:
            disk.remove_file(target / name)
        with disk.naming(target):
            for name in (*bundle.files, BUNDLE_NAME):
                disk.disk.replace(new / name, target / name)
            disk.disk.sync_folder(target)
    finally:
        disk.remove_folder(new)
        if not _listed(target) and [entry.name for entry in target.iterdir()] == [BUNDLE_NAME]:
            disk.remove_folder(target)
    return bundle, proof


def _write_files(trained: _Trained, folder: Path, *, onnx: bool) -> Bundle:
    bundle = trained.bundle
    program = partial(stoker.train.export_model, _LastRow(trained.model), {"features": trained.windows})
    programs = [program(folder / PROGRAM_NAME), *([program(folder / ONNX_NAME, onnx=True)] if onnx else [])]
    metadata = {"length": str(bundle.length), "reach": str(bundle.reach), "spec": bundle.spec_hash}
    written = {
        SPEC_NAME: json.dumps(trained.spec, indent=1).encode() + b"\n",
        WEIGHTS_NAME: _tensors(trained.model.state_dict(), **metadata),
        GOLDEN_NAME: _tensors({name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in trained.golden.items()}),
        SCRIPT_NAME: _script(trained),
        META_NAME: _json(_meta(bundle, trained.spec)),
        SERVING_NAME: _json(_serving(bundle)),
    }
    for name, data in written.items():
        disk.write_file(folder / name, data)
    names = [*written, *(path.name for done in programs for path in (done.path, done.golden))]
    bundle = msgspec.structs.replace(bundle, files={name: _digest(folder / name) for name in names})
    disk.write_file(folder / BUNDLE_NAME, msgspec.json.format(msgspec.json.encode(bundle), indent=1) + b"\n")
    return bundle


def _read_run(run: Path, *, latest: bool) -> _Trained:
    """The model of a run with its weights, and its golden bars."""
    settings, bundle, spec, model = read_model(run, latest=latest)
    bars = _golden_bars(settings, run, bundle)
    features = stoker_recipes.tfa.features(bars, spec).values[bundle.warm_up :]
    with torch.inference_mode():
        logits = model(torch.from_numpy(features[None]))[0, -(len(features) - bundle.reach + 1) :].numpy()
    return _Trained(bundle=bundle, spec=spec, model=model, golden={**bars, "features": features, "logits": logits})


def read_model(run: Path, *, latest: bool) -> tuple[Settings, Bundle, dict[str, Any], TfaModel]:
    """The settings of a run, its description as a bundle, its features, and its model with its weights."""
    if not (run / CONFIG_NAME).is_file():
        raise ConfigError(f"{run} has no {CONFIG_NAME}, so it is not the folder of a run. Train one first: stoker train tfa.yaml")
    settings = read_settings(run / CONFIG_NAME)
    spec = json.loads((run / SPEC_NAME).read_text())
    parsed = stoker_recipes.tfa.FeatureStream(spec).spec
    score = json.loads((run / SCORE_NAME).read_text()) if (run / SCORE_NAME).is_file() else {}
    thresholds = {"least_change": settings.least_change, "least_volume": settings.min_volume_threshold}
    plain = Bundle(
        symbol=settings.symbol,
        model=settings.chosen_model,
        sizes=_sizes(settings),
        length=settings.length,
        reach=1,
        stationary=bool(settings.stationary),
        features=list(parsed.names),
        spec_hash=parsed.content_hash,
        arithmetic=parsed.compat or "exact",
        warm_up=warm_up_of(spec),
        label={"horizon": settings.label_horizon, **thresholds},
        step=0,
        score={name: score[name] for name in ("lines", "skilled", "verdict") if name in score},
        files={},
    )
    model = build_of(plain, spec)
    step = stoker.train.load_trained(model, run, latest=latest).step
    return settings, msgspec.structs.replace(plain, reach=model.reach, step=step), spec, model


def _listed(folder: Path) -> list[str]:
    """The files that bundle.json lists; none where it is only the marker, or damaged."""
    try:
        listed = msgspec.json.decode((folder / BUNDLE_NAME).read_bytes()).get("files", {})
    except (OSError, msgspec.DecodeError, AttributeError):
        return []
    return [name for name in listed if isinstance(name, str) and Path(name).name == name]


@using(1)
def verify_bundle(folder: str | Path) -> Proof:
    """Read a bundle and check its golden bars, bar by bar against the batch.

    Args:
        folder: The bundle.

    Returns:
        What was compared.

    Raises:
        CheckpointInvalidError: A file is missing, damaged or changed.
        TrainError: Features or logits differ from those of the batch.
    """
    predictor = BarPredictor.load(folder)
    golden = {name: tensor.numpy() for name, tensor in _read_tensors(Path(folder) / GOLDEN_NAME)[0].items()}
    columns = [name for name in PRICES if name in golden]
    num_bars, rows, features, logits = len(golden["close"]), 0, golden["features"], golden["logits"]
    differences = []
    for i in range(num_bars):
        logit = predictor.push({name: float(golden[name][i]) for name in columns})
        behind = i - (num_bars - len(features))
        if behind >= 0:
            rows += 1
            if predictor.features.tobytes() != features[behind].tobytes():
                raise TrainError(f"{folder}: the features of golden bar {i:,} differ between bar by bar and batch. Do not use it.")
        behind = i - (num_bars - len(logits))
        if behind >= 0:
            if logit is None:
                raise TrainError(f"{folder}: golden bar {i:,} has no logit, but it had one in the batch. Do not use it.")
            differences.append(abs(logit - float(logits[behind])))
    allowed = TOLERANCE * max(1.0, float(np.abs(logits).max()))
    if not max(differences) <= allowed:
        off = f"{max(differences):.2g} off bar by bar"
        raise TrainError(f"{folder}: a logit is {off}; expected at most {allowed:.2g}. Do not use it.")
    return Proof(rows=rows, logits=len(differences), difference=max(differences))


def read_bundle(folder: Path) -> tuple[Bundle, dict[str, Any], TfaModel]:
    """Read a bundle; every file is checked by its hash, the spec by its own, the weights by their window."""
    try:
        bundle = msgspec.json.decode((folder / BUNDLE_NAME).read_bytes(), type=Bundle)
    except FileNotFoundError:
        raise ConfigError(f"{folder} has no {BUNDLE_NAME}, so it is not a bundle. Write one: stoker export RUN {folder}") from None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CheckpointInvalidError(f"{folder / BUNDLE_NAME} cannot be read: {error}.") from None
    if (bundle.format, bundle.version) != ("stoker-tfa", 1):
        description = f"a {bundle.format} of version {bundle.version}"
        raise CheckpointInvalidError(f"{folder / BUNDLE_NAME} is {description}; expected stoker-tfa, 1.")
    for name in dict.fromkeys((SPEC_NAME, WEIGHTS_NAME, GOLDEN_NAME, PROGRAM_NAME, PROGRAM_GOLDEN_NAME, *bundle.files)):
        if Path(name).name != name:
            raise CheckpointInvalidError(f"{folder / BUNDLE_NAME} names the file {name!r}; expected one within the bundle.")
        if not (folder / name).is_file() or _digest(folder / name) != bundle.files.get(name):
            what = "has changed since it was written" if (folder / name).is_file() else "is missing"
            raise CheckpointInvalidError(f"{folder / name} {what}. Export the bundle again.")
    spec = json.loads((folder / SPEC_NAME).read_text())
    parsed = stoker_recipes.tfa.FeatureStream(spec).spec
    if parsed.content_hash != bundle.spec_hash:
        hashes = f"{parsed.content_hash}, but the model was trained on {bundle.spec_hash}"
        raise CheckpointInvalidError(f"{folder / SPEC_NAME} has the hash {hashes}.")
    for name, here in {"warm_up": warm_up_of(spec), "features": list(parsed.names)}.items():
        if (said := getattr(bundle, name)) != here:
            gives = f"{name} {said}, but {SPEC_NAME} gives {here}"
            raise CheckpointInvalidError(f"{folder / BUNDLE_NAME} says {gives}. Export it again.")
    weights, metadata = _read_tensors(folder / WEIGHTS_NAME)
    for name, value in (("length", bundle.length), ("reach", bundle.reach), ("spec", bundle.spec_hash)):
        if metadata.get(name) != str(value):
            raise CheckpointInvalidError(
                f"{folder / BUNDLE_NAME} says {name} {value}, but {WEIGHTS_NAME} was trained with "
                f"{metadata.get(name)}: logits would be meaningless. Export the bundle again."
            )
    model = build_of(bundle, spec)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        why = " ".join(str(error).split())[:200]
        raise CheckpointInvalidError(f"{folder / WEIGHTS_NAME} is of another model: {why}") from error
    return bundle, spec, model


def _golden_bars(settings: Settings, run: Path, bundle: Bundle) -> dict[str, Array]:
    """The newest bars of the longest series."""
    bars = read_bars(settings.sources, run / BARS_NAME)
    rows = bars.series(int(np.argmax(bars.lengths)))
    wanted = bundle.warm_up + bundle.reach + GOLDEN_ROWS - 1
    whole = {name: values[rows] for name, values in bars.columns.items()}
    good = np.isfinite(np.stack(list(whole.values()))).all(axis=0)
    return {name: values[good][-wanted:] for name, values in whole.items()}


def _sizes(settings: Settings) -> dict[str, int | bool]:
    """All sizes of the model, including defaults."""
    model = inspect.signature(Banded if settings.chosen_model == "banded" else Tfa).parameters
    sizes = {name: parameter.default for name, parameter in model.items()}
    sizes |= (SMALL if settings.chosen_model == "tfa-small" else {}) | settings.model_options
    return {name: size for name in sorted(KNOWN[settings.chosen_model]) if (size := sizes[name]) is not None}


class _LastRow(nn.Module):
    """The logits of the last rows: [batch] of a batch with `features` [batch, rows, features].

    Of the features alone it is a column [batch, 1], which is the interface of Sentio's C++.
    """

    def __init__(self, model: TfaModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: dict[str, torch.Tensor] | torch.Tensor) -> torch.Tensor:
        logits = self.model(batch)[:, -1:] if isinstance(batch, torch.Tensor) else self.model(batch["features"])[:, -1]
        return logits  # type: ignore[no-any-return]


def _script(trained: _Trained) -> bytes:
    """The model as TorchScript, checked on one window and on several, read back."""
    module, windows, buffer = _LastRow(trained.model).eval(), trained.windows, io.BytesIO()
    jit: Any = torch.jit
    with warnings.catch_warnings(), torch.no_grad():
        # Sentio's C++ reads nothing else. The trace fixes the number of rows, which is that of the window.
        warnings.filterwarnings("ignore", r"`torch\.jit\.\w+` is deprecated", DeprecationWarning)
        warnings.filterwarnings("ignore", "Converting a tensor to a Python boolean", jit.TracerWarning)
        jit.save(jit.trace(module, (windows[:1],), check_trace=False), buffer)
        again = jit.load(io.BytesIO(buffer.getvalue()))
        for part in (windows[:1], windows):
            expected = module(part)
            allowed = TOLERANCE * max(1.0, float(expected.abs().max()))
            apart = float((again(part) - expected).abs().max())
            if not apart <= allowed:
                off = f"{apart:.2g} off from the model; expected at most {allowed:.2g}"
                raise TrainError(f"the TorchScript is {off}. Nothing was written.")
    return buffer.getvalue()


def _meta(bundle: Bundle, spec: dict[str, Any]) -> dict[str, Any]:
    """The content of Sentio's model.meta.json, with the window, which theirs lacks and their C++ takes for 64."""
    return {
        "schema_version": "1.0",
        "saved_at": int(time.time()),
        "framework": "torchscript",
        "arithmetic": bundle.arithmetic,
        "expects": {
            "input_dim": len(bundle.features),
            "feature_names": bundle.features,
            "spec_hash": stoker_recipes.tfa.FeatureStream(without_compat(spec)).spec.content_hash,  # as Sentio hashes it
            "emit_from": bundle.warm_up,
            "pad_value": float(spec.get("alignment_policy", {}).get("pad_value", 0.0)),
            "dtype": "float32",
            "output": "logit",
            "seq_len": bundle.reach,
        },
    }


def _serving(bundle: Bundle) -> dict[str, Any]:
    """The content of Sentio's metadata.json; without `clip` their C++ would clip raw prices at 5."""
    width = len(bundle.features)
    return {
        "schema_version": "1.0",
        "framework": "torchscript",
        "format": "torchscript",
        "feature_names": bundle.features,
        "mean": [0.0] * width,
        "std": [1.0] * width,
        "clip": [-1e30, 1e30],
        "actions": [],
        "seq_len": bundle.reach,
        "input_layout": "BTF",
    }


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content, indent=2).encode() + b"\n"


def _tensors(tensors: Mapping[str, torch.Tensor], **metadata: str) -> bytes:
    from safetensors.torch import save

    return save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, metadata=metadata or None)


def _read_tensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}, dict(opened.metadata() or {})  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise CheckpointInvalidError(f"{path} cannot be read: {error}.") from None


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# ---- the predictor ----

_ROOM = 4  # windows that the buffer of rows holds; when full, its end is moved to the front, so rows are not copied at each bar


class BarPredictor:
    """Logits of one series, bar by bar; `BarPredictor.load` reads one from a bundle.

        predictor = BarPredictor.load("bundle/")
        predictor.warm(history)                 # bars of the last days, for the warm-up of the indicators
        logit = predictor.push(bar)             # None until enough rows are ready

    The features are those of the batch, bit for bit. A row that is not ready gives None. A missing price ends the series, as in
    training, and the indicators start again after it: nothing is padded, filled or clipped.
    """

    def __init__(self, bundle: Bundle, spec: Any, model: TfaModel) -> None:
        self.bundle = bundle
        self._stream = stoker_recipes.tfa.FeatureStream(spec)
        self._model = model
        self._prices = [name for name in self._stream.bar if name != "volume"]
        self._rows = np.empty((_ROOM * bundle.reach, len(bundle.features)), dtype=np.float32)
        self._end = 0  # of the rows in the buffer
        self._ready = 0  # consecutive ready rows
        self._last = np.full(len(bundle.features), np.nan, dtype=np.float32)

    @classmethod
    def load(cls, folder: str | Path, *, spec: Any = None, length: int | None = None) -> Self:
        """Read a bundle; an own `spec` or `length` that differs from that of the model is an error."""
        bundle, saved_spec, model = read_bundle(Path(folder))
        if spec is not None:
            spec_hash = stoker_recipes.tfa.FeatureStream(spec).spec.content_hash
            if spec_hash != bundle.spec_hash:
                raise OptionError(
                    f"the spec here is {spec_hash}, but the model of {folder} was trained on {bundle.spec_hash}.", parameter="spec"
                )
        if length is not None and length != bundle.length:
            raise OptionError(
                f"windows here have {length} rows, but the model of {folder} was trained on {bundle.length}.", parameter="length"
            )
        return cls(bundle, saved_spec, model)

    @property
    def num_bars(self) -> int:
        """Number of bars so far."""
        return self._stream.num_bars

    @property
    def features(self) -> Array:
        """The features at the last bar, float32."""
        return self._last

    @property
    def is_ready(self) -> bool:
        """Whether the last bar had a logit."""
        return self._ready >= self.bundle.reach

    @property
    def bars_to_go(self) -> int:
        """Complete bars until there is a logit."""
        return max(self.bundle.warm_up - self.num_bars, 0) + self.bundle.reach - self._ready

    def push(self, bar: Any) -> float | None:
        """The logit at a new bar (a mapping, a record, or open, high, low, close, volume); None before enough rows are ready."""
        row = self._stream.push(bar)
        if any(not 0 < self._stream.bar[name] < math.inf for name in self._prices):
            self.reset()  # as in training: a missing price ends the series
            return None
        self._take(row)
        return self._logit() if self.is_ready else None

    def warm(self, bars: Any) -> None:
        """Take in the history of the series, a table of bars, as if each bar had been pushed."""
        columns = self._stream.read(bars)
        holes = [np.flatnonzero(~((columns[name] > 0) & (columns[name] < math.inf))) for name in self._prices]
        begin = max((int(rows[-1]) + 1 for rows in holes if len(rows)), default=0)
        if begin:
            self.reset()  # as `push` does at each missing price
        before = self.num_bars
        rows = self._stream.extend({name: values[begin:] for name, values in columns.items()})
        # Only the rows of the last window matter, and whether they are ready.
        for number, row in enumerate(rows[-self.bundle.reach :], max(before, self.num_bars - self.bundle.reach) + 1):
            self._take(row, num_bars=number)

    def reset(self) -> None:
        """Start another series."""
        self._stream.reset()
        self._end = self._ready = 0
        self._last = np.full(len(self.bundle.features), np.nan, dtype=np.float32)

    def _take(self, row: Array, *, num_bars: int | None = None) -> None:
        self._last = row
        if (self.num_bars if num_bars is None else num_bars) <= self.bundle.warm_up or not np.isfinite(row).all():
            self._end = self._ready = 0
            return
        if self._end == len(self._rows):
            keep = self.bundle.reach - 1
            self._rows[:keep] = self._rows[self._end - keep : self._end]
            self._end = keep
        self._rows[self._end] = row
        self._end += 1
        self._ready = min(self._ready + 1, self.bundle.reach)

    def _logit(self) -> float:
        window = torch.from_numpy(self._rows[None, self._end - self.bundle.reach : self._end])
        with torch.inference_mode():
            logits = self._model.last(window) if isinstance(self._model, Banded) else self._model(window)[:, -1]
        return float(logits[0])
