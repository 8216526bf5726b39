"""Predictions of a trained run for new data.

    table = stoker.load("runs/x").predict("new.csv")

`load` rebuilds the model of a run with its best weights; the training store is not needed. `predict` does with new data what the run
did with its own:

1. files and tables are packed with the statement (`sql=`), the key, the time column and the frequency of the training store,
2. categories get the codes that they had in training,
3. windows have the length of the run's view, and are scaled as in training,
4. predictions are scaled back, and get the names of their series and the times of the predicted steps.

`inputs.json` in the folder of a run holds what this needs to know about the training store. Runs of recipes have code of their own for
step 3, and the same table.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, overload

import numpy as np
import pyarrow as pa
import torch
from msgspec.structs import asdict
from torch import nn

from stoker import _disk, extend
from stoker._device import check_device
from stoker._types import Array
from stoker.errors import CheckpointInvalidError, ConfigError, OptionError, TrainError
from stoker.experiment import config as named
from stoker.experiment.backtest import Backtest, compare, season_of
from stoker.experiment.config import Config
from stoker.experiment.inputs import INPUTS_NAME, Inputs, frequency_of, options_for, read_inputs
from stoker.experiment.models import Task, blaming, make_model, naming_known
from stoker.experiment.parse import CONFIG_NAME, check, read_document
from stoker.experiment.prediction_table import Predicted, series_name, time_column, to_table
from stoker.experiment.trained import TrainedModel, open_trained
from stoker.feed.columns import lengths_of, samples_over
from stoker.feed.feed import Feed
from stoker.feed.padding import Returns
from stoker.feed.prefetch import Distributed
from stoker.feed.scaling import series_scales
from stoker.sampling.views import AnyView, Located, Sequences, Windows
from stoker.split.scaler import Scaler
from stoker.split.series_scaler import SeriesScaler
from stoker.store.manifest import MANIFEST_NAME
from stoker.store.opening import open_store
from stoker.store.pack.api import pack
from stoker.store.shards import Texts
from stoker.store.store import Store
from stoker.train.export import find_trained, load_weights

if TYPE_CHECKING:
    from stoker.train.checkpoint import Checkpoint

Which = Literal["last", "all"]
Short = Literal["error", "skip"]

SCALER_NAME = "scaler.safetensors"
_SHOWN = 3


# ---- a trained run ----


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainedRun:
    """A trained model with all that it needs for new data. `stoker.load` returns one."""

    folder: Path
    step: int
    """The update of the weights."""
    model: nn.Module
    run: Callable[..., Sequence[Predicted]]
    """Predicts for an open store or, in recipes, for anything that they read."""
    inputs: Inputs | None = None
    """What the model reads; None for recipes."""
    pack_options: Mapping[str, Any] = field(default_factory=dict)
    """What files and tables are packed with."""

    def __repr__(self) -> str:
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        return f"<run {self.folder}: {type(self.model).__name__} with {parameters:,} parameters, weights of step {self.step:,}>"

    def predict(
        self,
        data: object,
        *,
        which: Which = "last",
        horizon: int | None = None,
        stride: int | None = None,
        short: Short = "error",
        batch_size: int = 1024,
        pack_options: Mapping[str, Any] | None = None,
    ) -> pa.Table:
        """Predict for new data, in the units of the data.

        Args:
            data: A store, the path of one, or what `stoker.pack` takes: files, a DataFrame, a mapping of arrays, an Arrow table.
                Columns that only name the answer (targets that the model does not read) may be missing.
            which: "last" predicts once per series, from its last steps; "all" from every window of the run's view.
            horizon: Steps to forecast, for runs of recipes that can forecast any number.
            stride: With `which="all"`: steps from one window to the next, by default those of the run's view.
            short: What to do with series that are shorter than the window of the model: an "error", or "skip" them.
            batch_size: Windows at once.
            pack_options: Options of `stoker.pack` for files and tables, besides those of the training store, like `{"sort": True}`.

        Returns:
            An Arrow table with the columns `series`, `time` (if the data has a time column), `step` (the number of the predicted
            step in its series), `ahead` (steps behind the last one that the model saw, for forecasts), `column` and `prediction`. A
            quantile loss adds a column per quantile (`q0.1`), classes add their probabilities (`p_cat`).

        Raises:
            OptionError: The data lacks a column, holds unknown categories, or a series is too short.

        Example:
            >>> import numpy as np, stoker
            >>> wave = np.sin(np.arange(64.0)).astype("f4")
            >>> _ = stoker.Store.from_arrays(x=[wave]).save("w.stoker")
            >>> view = "{name: windows, length: 8, horizon: 2}"
            >>> _ = Path("c.yaml").write_text(f"data: {{store: w.stoker, view: {view}, batch_size: 16}}\\nmodel: linear")
            >>> _ = stoker.experiment.run("c.yaml", folder="runs/w", progress=False)
            >>> table = stoker.load("runs/w").predict({"x": wave[:20]})
            >>> table.column_names, table["step"].to_pylist()
            (['series', 'step', 'ahead', 'column', 'prediction'], [20, 21])
        """
        if which not in get_args(Which) or short not in get_args(Short):
            raise OptionError(
                f"which is {which!r} and short {short!r}; expected 'last' or 'all', and 'error' or 'skip'.", parameter="which"
            )
        for name, value in (("horizon", horizon), ("stride", stride), ("batch_size", batch_size)):
            least_type = isinstance(value, int) and not isinstance(value, bool)
            if value is not None and not (least_type and value >= 1):
                raise OptionError.expected(name, value, "an integer from 1")
        if stride is not None and which == "last":
            raise OptionError("stride= is for which='all': which='last' predicts once per series.", parameter="stride")
        options = {"which": which, "horizon": horizon, "stride": stride, "short": short, "batch_size": batch_size}
        with self.opened(data, pack_options) as opened:
            parts = self.run(opened, **options)
            freq = frequency_of(parts[0].store) if parts else None
            return to_table(parts, freq=freq or (self.inputs.freq if self.inputs is not None else None))

    def backtest(
        self,
        data: object,
        *,
        windows: int = 8,
        season: int | None = None,
        short: Short = "error",
        pack_options: Mapping[str, Any] | None = None,
    ) -> Backtest:
        """Forecast from past steps of data, and compare with what came and with a seasonal naive forecast.

        The last forecast of a series ends where the series ends, the one before ends where the last one begins, and so on. Steps that
        the run was trained on are easier for the model than new ones: use data that is later.

        Args:
            data: As for `predict`.
            windows: Forecasts per series.
            season: Steps after which the naive forecast repeats; by default a day, a week or a year by the frequency of the data.
            short: What to do with series that are too short for one forecast: an "error", or "skip" them.
            pack_options: As for `predict`.

        Returns:
            The forecasts with actual and naive values, and metrics per step ahead.

        Raises:
            OptionError: The run predicts no horizon, or no amounts.

        Example:
            >>> import numpy as np, stoker
            >>> wave = np.sin(np.arange(200.0) * np.pi / 12).astype("f4")
            >>> _ = stoker.Store.from_arrays(x=[wave]).save("t.stoker")
            >>> view = "{name: windows, length: 24, horizon: 4}"
            >>> _ = Path("t.yaml").write_text(f"data: {{store: t.stoker, view: {view}, batch_size: 16}}\nmodel: linear")
            >>> _ = stoker.experiment.run("t.yaml", folder="runs/t", progress=False)
            >>> test = stoker.load("runs/t").backtest("t.stoker", windows=3, season=24)
            >>> test.table.num_rows, [row["ahead"] for row in test.metrics()]
            (12, [1, 2, 3, 4, 0])
        """
        for name, value in (("windows", windows), ("season", season)):
            if value is not None and not (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 2**31):
                raise OptionError(f"{name} is {value!r}; expected an integer from 1.", parameter=name)
        if not isinstance(self.run, _ConfigRun) or not self.run.forecasts_amounts:
            raise OptionError(
                f"{self.folder} is not a run that forecasts amounts: a backtest is for configurations whose data.view has a horizon, "
                "with a loss such as mse, mae or quantile.",
                path=self.folder,
            )
        with self.opened(data, pack_options) as store:
            parts = self.run(store, which="all", horizon=None, stride=None, short=short, batch_size=1024, origins=windows)
            freq = frequency_of(store) or (self.inputs.freq if self.inputs is not None else None)
            repeats = season if season is not None else season_of(store, parts[0].time, freq)
            table = to_table([compare(part, repeats) for part in parts], freq=freq)
        return Backtest(table=table, season=repeats, windows=windows)

    def opened(self, data: object, pack_options: Mapping[str, Any] | None = None) -> contextlib.AbstractContextManager[Any]:
        """Open data for several calls of `predict` and `backtest`: files are packed once, and removed at the end."""
        return _opened(data, self.inputs, self.pack_options, dict(pack_options or {}))


@overload
def load(run: str | os.PathLike[str], *, latest: bool = False, device: str | None = None) -> TrainedRun: ...


@overload
def load(run: str | os.PathLike[str], *, model: nn.Module, latest: bool = False, device: str | None = None) -> TrainedModel: ...


def load(
    run: str | os.PathLike[str], *, model: nn.Module | None = None, latest: bool = False, device: str | None = None
) -> TrainedRun | TrainedModel:
    """Load the model of a run with its best weights, for predictions.

    Args:
        run: The folder of a run of a configuration, of an installed recipe, or of `stoker.Trainer`.
        model: For a run of `stoker.Trainer`: the model of your own, made as for training. It gets the weights, and is changed.
        latest: Load the newest weights instead of the best ones.
        device: Where the model runs; by default a GPU where there is one.

    Returns:
        The run; its `predict` takes new data. With `model=` it predicts for stores and for batches, and returns tensors.

    Raises:
        ConfigError: The folder is not that of a run.
        CheckpointError: The run has no checkpoint.

    Example:
        >>> import stoker
        >>> stoker.load("no/such/run")
        Traceback (most recent call last):
        stoker.errors.ConfigError: no/such/run has no config.yaml, so it is not the folder of a run of `stoker train`.
    """
    folder = Path(run)
    place = str(check_device(device or ("cuda" if torch.cuda.is_available() else "cpu")))
    if model is not None:
        return open_trained(folder, model, latest=latest, device=torch.device(place))
    recipe = _recipe_of(folder)
    if recipe is not None:
        opened: TrainedRun = recipe(folder, latest=latest, device=place)
        return opened
    if not (folder / CONFIG_NAME).is_file():
        advice = ""
        if (folder / "run.json").is_file():
            advice = " Of a run of stoker.Trainer give the model: stoker.load(run, model=model), or --model file.py:function."
        raise ConfigError(f"{folder} has no {CONFIG_NAME}, so it is not the folder of a run of `stoker train`.{advice}")
    found = find_trained(folder, latest=latest)
    config = check(read_document(folder / CONFIG_NAME), Config)
    inputs = read_inputs(folder / INPUTS_NAME)
    view = config.data.view
    length = view.max_length if isinstance(view, named.SequenceView) else view.length
    if inputs.task.length != length:
        raise CheckpointInvalidError(
            f"{folder / INPUTS_NAME} is of samples of {inputs.task.length:,} steps, but {CONFIG_NAME} of {length:,}. "
            "Put back the files of the run."
        )
    network = _model_of(config, inputs.task, found).to(place).eval()
    scaler = SeriesScaler.open(folder / SCALER_NAME) if (folder / SCALER_NAME).is_file() else None
    job = _ConfigRun(config=config, inputs=inputs, model=network, device=torch.device(place), scaler=scaler)
    return TrainedRun(folder=folder, step=found.step, model=network, run=job, inputs=inputs, pack_options=options_for(inputs))


def _recipe_of(folder: Path) -> Callable[..., TrainedRun] | None:
    """Return what opens the run of a recipe, or None for one of a configuration."""
    name = extend.recipe_of_run(folder)
    if name is None and folder.is_dir() and not (folder / CONFIG_NAME).exists():
        name = next((known for known in extend.registered("recipes") if extend.recipe(known).owns_folder(folder)), None)
    if name is None:
        return None
    open_run = extend.recipe(name).open_run
    if open_run is None:
        raise ConfigError(
            f"{folder} is of the recipe {name!r}, whose runs make no predictions. See `stoker {name} --help`.", path=folder
        )
    return open_run


def _model_of(config: Config, task: Task, found: Checkpoint) -> nn.Module:
    """The model with the weights of a checkpoint, which also says whether the model scales its columns."""
    weights = found.parts.get("model") or {}
    scalers: dict[str, nn.Module] = {}
    for name, columns in (("scaler", task.numbers), ("target_scaler", task.targets)):
        if any(key == f"{name}.mean" or key.endswith(f".{name}.mean") for key in weights):
            scalers[name] = Scaler(sum(columns.values()), columns=list(columns))
    model = make_model(config.model, task, **scalers)
    load_weights(model, found)
    return model


# ---- new data ----


@contextlib.contextmanager
def _opened(data: object, inputs: Inputs | None, usual: Mapping[str, Any], options: dict[str, Any]) -> Iterator[Any]:
    """New data as a store with the columns and codes of training. What is packed on the way is removed at the end."""
    is_path = isinstance(data, str | os.PathLike)
    is_store = isinstance(data, Store) or (is_path and (Path(data) / MANIFEST_NAME).is_file())  # type: ignore[arg-type]
    if is_store and options:
        raise OptionError(f"pack_options is {options}, but the data is a store already. Leave them out.", parameter="pack_options")
    if is_store:
        store = data if isinstance(data, Store) else open_store(data)  # type: ignore[arg-type]
        yield store if inputs is None else _conform(store, inputs)
        return
    if inputs is None and is_path and not (options or usual):
        yield data  # recipes read files of their own
        return
    with _disk.temporary_folder() as folder:
        try:
            packed = pack(data, folder / "new.stoker", **{**usual, **options})
        except OptionError as error:
            if "sql" in usual and "sql" not in options and str(error).startswith("sql="):
                raise OptionError(
                    f"{error} The training data was packed with this statement. Pass another one as the pack option sql, or sql=None for "
                    "data that has the columns of the store.",
                    parameter="sql",
                ) from None
            found = re.match(r"(series|time|columns|dtype)= names ('.*?'), but (.*)", str(error))
            if found is None or found[1] in options:
                raise
            why = {"series": "the key of the training data", "time": "its time column"}.get(
                found[1], "a column that the model reads"
            )
            raise OptionError(
                f"{found[3]} {found[2]}, {why}, is missing. Add it, or pass a statement that makes it as the pack option sql.",
                parameter="data",
            ) from None
        packed.name = str(data) if is_path else "the data"  # for messages, instead of the temporary folder
        yield packed if inputs is None else _conform(packed, inputs)


def _conform(store: Store, inputs: Inputs) -> Store:
    """The store with the codes and kinds of training; what does not fit is an error that names it."""
    where = store.name
    columns, values = (
        dict(store.schema),
        {one: store.column(one) for one, column in store.schema.items() if column.dtype is not None},
    )
    for given in inputs.task.inputs:
        was, now = inputs.column(given), columns.get(given)
        if now is None:
            raise OptionError(f"{where} has no column {given!r}, which the model reads; it has {', '.join(columns)}.", column=given)
        numeric = ("number", "bfloat16")
        same_kind = now.kind == was.kind or (now.kind in numeric and was.kind in numeric)
        if not same_kind or now.level != was.level or (now.width or 1) != (was.width or 1):
            found = f"{now.label} per {now.level}"
            size = f"[{was.width}]" if was.width else ""
            raise OptionError(
                f"column {given!r} of {where} holds {found}; the model was trained on {was.kind}{size} per {was.level}.",
                column=given,
            )
        if was.texts is not None and now.texts is not None:
            codes = _mapped(values[given], now.texts, was.texts, f"column {given!r} of {where}")
            columns[given], values[given] = replace(now, texts=Texts.of(was.texts)), codes
        elif was.dtype is not None and was.dtype.startswith("float") and values[given].dtype.kind in "iub" and now.kind == "number":
            values[given] = values[given].astype(was.dtype)
            columns[given] = replace(now, dtype=values[given].dtype)
    if all(values[value] is store.column(value) for value in values):
        return store
    return Store(
        columns,
        values,
        num_series=len(store),
        length=store.uniform_length,
        offsets=None if store.uniform_length is not None else store.offsets,
        name=store.name,
        manifest=store.manifest,
        path=store.path,
    )


def _mapped(codes: Array, now: Sequence[str], was: Sequence[str], where: str) -> Array:
    """Codes into the categories of training; missing values stay missing."""
    known = {text: code for code, text in enumerate(was)}
    table = np.array([known.get(text, -2) for text in now] + [-1], dtype=np.int32)
    found: Array = table[codes]  # the code -1 picks the last entry
    if (found == -2).any():
        unknown = sorted({now[code] for code in np.unique(codes[found == -2]).tolist()})
        shown = ", ".join(map(repr, unknown[:_SHOWN])) + (", …" if len(unknown) > _SHOWN else "")
        raise OptionError(
            f"{where} holds {len(unknown):,} categories that the training data did not have: {shown}. The model has no code for them; "
            "leave their rows out, or replace them by a known category.",
            parameter="data",
        )
    return found


# ---- runs of a configuration ----


def _is_ahead(name: str) -> bool:
    """Whether an entry of a batch is about the steps after a sample."""
    return name.endswith(("_target", "_target_observed")) or name == "target_mask"


@dataclass(frozen=True, kw_only=True)
class _ConfigRun:
    """Predicts for a store, as the configuration of a run says."""

    config: Config
    inputs: Inputs
    model: nn.Module
    device: torch.device
    scaler: SeriesScaler | None

    @property
    def task(self) -> Task:
        return self.inputs.task

    @property
    def forecasts_amounts(self) -> bool:
        """Whether the run predicts amounts of later steps."""
        return self.task.when == "horizon" and not isinstance(self.config.loss, named.Bce | named.CrossEntropy)

    def __call__(
        self,
        store: Store,
        *,
        which: Which,
        horizon: int | None,
        stride: int | None,
        short: Short,
        batch_size: int,
        origins: int | None = None,
    ) -> list[Predicted]:
        task, data = self.task, self.config.data
        if horizon is not None and horizon != task.horizon:
            fixed = f"{task.horizon} steps (data.view)" if task.horizon else "no horizon"
            raise OptionError(f"horizon is {horizon}, but the model was trained with {fixed}. Leave it out.", parameter="horizon")
        if stride is not None and isinstance(data.view, named.SequenceView):
            raise OptionError(
                "stride= is for windows, but a sample of this run is a whole series. Leave it out.", parameter="stride"
            )
        view = self._view("last" if origins else which, stride, ahead=bool(origins))
        numbers, located = self._chosen(store, view, which, short, origins)
        if task.known and which == "last":
            self._check_horizon(store, located)
        if not len(numbers):
            raise OptionError(
                f"{store.name} has no series that is long enough for the model: it needs {task.length:,} steps.", parameter="data"
            )
        feed = Feed(
            store,
            view,
            batch_size=min(batch_size, len(numbers)),
            columns=list(task.inputs),
            dtype=data.dtype,
            normalize=data.normalize,
            observed=[name for name in task.inputs if name in task.observed],
            returns=Returns(masks=True if task.padded else None),
            distributed=Distributed(rank=0, world_size=1),
        )
        dataset, inverse = feed.as_dataset(), self._inverse(store)
        rows = None if self.scaler is None else self._scaler_rows(self.scaler, store)
        outputs = []
        own = [one.function for one in (self.config.model, self.config.loss) if isinstance(one, named.Own)]
        with torch.no_grad(), blaming(*own):
            for first in range(0, len(numbers), batch_size):
                some = slice(first, first + batch_size)
                batch = dict(dataset.__getitems__(numbers[some]).batch)
                series = located.series[some]
                batch = {name: values for name, values in batch.items() if not _is_ahead(name) or name in task.known_entries}
                if self.scaler is not None and rows is not None:
                    batch = self._scaled(self.scaler, batch, rows[series])
                    batch["series"] = torch.from_numpy(rows[series])
                batch["valid"] = torch.ones(len(series), dtype=torch.bool)
                outputs.append(inverse(self._answers({name: one.to(self.device) for name, one in batch.items()}), series))
        return self._rows(store, located, np.concatenate(outputs), view, which)

    def _answers(self, batch: dict[str, torch.Tensor]) -> Array:
        """What the model gives for a batch: [rows, steps, targets, outputs of each], float64."""
        task = self.task
        with naming_known():
            given = self.model(batch)
        rows, steps = len(batch["valid"]), task.steps
        if task.every_step:
            steps = given.shape[1] if given.dim() > 1 else steps
        if given.numel() != rows * steps * task.outputs:
            expected = (rows, steps, task.outputs)
            raise TrainError(f"the model gives {tuple(given.shape)}; expected [rows, predicted steps, outputs] = {expected}.")
        found: Array = given.double().reshape(rows, steps, task.num_targets, task.outputs_each).cpu().numpy()
        return found

    def _view(self, which: Which, stride: int | None, *, ahead: bool = False) -> AnyView:
        """The samples of the run's view, without the targets behind them: a forecast begins where the data ends.

        Where columns are known of the predicted steps, or with `ahead`, these steps are the last ones of the data.
        """
        view, task = self.config.data.view, self.task
        if isinstance(view, named.SequenceView):
            longest = view.max_length
            return Sequences(longest, buckets=tuple(view.buckets or (longest,)), keep="first" if view.keep == "first" else "last")
        options = asdict(view)
        usual = options.pop("stride", view.length)
        tail = "keep" if task.padded and task.when != "horizon" else "drop"
        steps_ahead = task.horizon if task.known or ahead else 0
        return Windows(
            **options | {"horizon": steps_ahead, "shift": 0, "tail": tail, "stride": 1 if which == "last" else stride or usual}
        )

    def _chosen(self, store: Store, view: AnyView, which: Which, short: Short, origins: int | None = None) -> tuple[Array, Located]:
        """The numbers of the samples to predict from, and where they lie; refuses or skips series without one.

        With `origins`, this number per series: the last one, that of a horizon before it, and so on.
        """
        ahead = view.horizon if isinstance(view, Windows) else 0
        least = view.length + ahead if isinstance(view, Windows) and view.tail == "drop" else 1
        numbers = np.zeros(0, dtype=np.int64)
        located = Located(numbers, numbers, numbers)
        if (store.lengths >= least).any():
            samples = samples_over(store, view)[1]
            firsts = samples.first_samples()
            bounds = np.arange(len(store) + 1) if firsts is None else firsts
            if origins is not None:
                back = (bounds[1:, None] - 1 - ahead * np.arange(origins)[::-1]).astype(np.int64)
                numbers = back[back >= bounds[:-1, None]]
            else:
                numbers = (bounds[1:] - 1)[np.diff(bounds) > 0] if which == "last" else np.arange(samples.num_samples)
            located = samples.locate(numbers)
            located = located._replace(counts=located.counts - ahead)  # the steps that the model sees
        fits = located.counts > 0
        if which == "last":  # where a gap cuts a series, its last window may end before it
            end = store.offsets[located.series + 1]
            fits &= located.starts + located.counts + ahead == end if isinstance(view, Windows) else True
        missing = np.setdiff1d(np.arange(len(store)), located.series[fits])
        if len(missing) and short == "error":
            one = int(missing[0])
            many = f" (as {len(missing) - 1:,} others of {len(store):,})" if len(missing) > 1 else ""
            raise OptionError(
                f"series {series_name(store, one)!r} of {store.name} is too short: the model needs {least:,} steps in a row, and it has "
                f"{int(store.lengths[one]):,}{many}. Add earlier steps, or pass short='skip'.",
                parameter="short",
            )
        return numbers[fits], Located(*(part[fits] for part in located))

    def _check_horizon(self, store: Store, located: Located) -> None:
        """Refuse data whose last steps have targets: they are not the steps to be predicted."""
        steps = located.starts + located.counts
        for name in self.task.targets:
            if name not in store.schema or store.schema[name].level != "step":
                continue
            values = store.column(name)
            for series, first in zip(located.series.tolist(), steps.tolist(), strict=True):
                rows = values[first : first + self.task.horizon]
                if rows.dtype.kind != "f" or not np.isnan(rows).all():
                    known = ", ".join(self.task.known)
                    raise OptionError(
                        f"the last {self.task.horizon:,} steps of series {series_name(store, series)!r} of {store.name} have values of "
                        f"{name!r}; expected the steps to be predicted, with {known} and without {name!r}. Add these rows with empty "
                        "targets, or predict which='all' to compare with values that are known.",
                        parameter="which",
                        column=name,
                    )

    # -- scaling by series --

    def _inverse(self, store: Store) -> Callable[[Array, Array], Array]:
        """From what the model gives to the units of the data, where the feed scales each series."""
        task, method, loss = self.task, self.config.data.normalize, self.config.loss
        amounts = not isinstance(loss, named.Bce | named.CrossEntropy)
        centers: dict[str, tuple[Array, Array]] = {}
        for name in task.targets if amounts else ():
            column = self.inputs.column(name)
            if self.scaler is not None and name in self.scaler.columns:
                scales, rows = self.scaler.scales(name), self._scaler_rows(self.scaler, store)
                centers[name] = scales.centers[rows], scales.divisors[rows]
            elif method is not None and column.level == "step" and (column.dtype or "").startswith("float"):
                if name not in store.schema:
                    raise OptionError(
                        f"{store.name} has no column {name!r}: the run scales it by its own values (data.normalize), so predictions "
                        "cannot be scaled back without it.",
                        column=name,
                    )
                scales = series_scales(store.column(name), lengths_of(store), method)
                centers[name] = scales.centers, scales.divisors

        def inverse(answers: Array, series: Array) -> Array:
            first = 0
            for name, width in task.targets.items():
                if name in centers:
                    center, divisor = (rows[series][:, None, :, None] for rows in centers[name])
                    answers[:, :, first : first + width] = answers[:, :, first : first + width] * divisor + center
                first += width
            return answers

        return inverse

    def _scaler_rows(self, scaler: SeriesScaler, store: Store) -> Array:
        """The row of the run's scaler for each series of a store, by its name; without keys, by its number in the training store."""
        keys = scaler.keys if scaler.keys is not None else range(len(scaler.scales(scaler.columns[0]).centers))
        names = {name: i for i, name in enumerate(keys)}
        rows = [names.get(series_name(store, i), -1) for i in range(len(store))]
        unknown = [str(series_name(store, i)) for i, row in enumerate(rows) if row < 0]
        if unknown:
            shown = ", ".join(unknown[:_SHOWN]) + (", …" if len(unknown) > _SHOWN else "")
            raise OptionError(
                f"{store.name} has {len(unknown):,} series that the training data did not have: {shown}. The run scales each series by "
                "its training steps, so it cannot predict them. Leave them out, or train with data.scale: true.",
                parameter="data",
            )
        return np.array(rows, dtype=np.int64)

    def _scaled(self, scaler: SeriesScaler, batch: dict[str, torch.Tensor], rows: Array) -> dict[str, torch.Tensor]:
        """Inputs scaled as the feed of the run scaled them; padding stays zero."""
        entries = {name: name for name in self.task.inputs} | {f"{name}_target": name for name in self.task.known}
        for entry, name in entries.items():
            if name in scaler.columns:
                scaled = scaler.transform(batch[entry], rows, name).to(getattr(torch, self.config.data.dtype))
                if "mask" in batch and entry == name:
                    mask = batch["mask"].reshape(*batch["mask"].shape, *(1,) * (scaled.dim() - 2))
                    scaled = torch.where(mask, scaled, 0)
                observed = batch.get(f"{entry}_observed")
                batch[entry] = scaled if observed is None else torch.where(observed, scaled, 0)
        return batch

    # -- rows of the table --

    def _rows(self, store: Store, located: Located, answers: Array, view: AnyView, which: Which) -> list[Predicted]:
        """Predictions as columns, sample by sample; one part per number of the targets."""
        task = self.task
        within = located.starts - store.offsets[located.series]
        ahead = None
        if task.when == "horizon":
            place = np.broadcast_to(np.arange(task.horizon), (len(within), task.horizon))
            steps = (within + located.counts)[:, None] + place
            keep, ahead = np.ones(steps.shape, dtype=bool), place + 1
        elif task.when == "shift":
            shift = self.config.data.view.shift if not isinstance(self.config.data.view, named.SequenceView) else 0
            place = np.broadcast_to(np.arange(answers.shape[1]), answers.shape[:2])
            steps = within[:, None] + place + shift
            # Each step is predicted once: by the window that sees most before it, or with "last" only behind the data.
            begin = located.counts - shift if which == "last" else self._overlaps(located, view)
            keep = (place >= begin[:, None]) & (place < located.counts[:, None])
            ahead = np.full(steps.shape, shift)
        else:
            steps = (within + located.counts - 1)[:, None]
            keep = np.ones(steps.shape, dtype=bool)
        series = np.broadcast_to(located.series[:, None], steps.shape)[keep]
        time = time_column(store, self.inputs.pack.get("time"))
        names = [f"{name}[{i}]" if width > 1 else name for name, width in task.targets.items() for i in range(width)]
        parts = []
        for number, column in enumerate(names):
            values = self._columns(answers[:, :, number][keep])
            behind = None if ahead is None else ahead[keep]
            parts.append(
                Predicted(store=store, time=time, series=series, steps=steps[keep], column=column, values=values, ahead=behind)
            )
        return parts

    def _overlaps(self, located: Located, view: AnyView) -> Array:
        """Steps at the beginning of each window that the window before it predicts too."""
        assert isinstance(view, Windows)
        follows = (np.diff(located.series, prepend=-1) == 0) & (np.diff(located.starts, prepend=-1) == view.stride)
        return np.where(follows, max(0, view.length - view.stride), 0)

    def _columns(self, answers: Array) -> dict[str, Any]:
        """The columns of the table for outputs [rows, outputs of each]."""
        loss = self.config.loss
        if isinstance(loss, named.Quantile):
            middle = int(np.argmin([abs(level - 0.5) for level in loss.quantiles]))
            named_levels = {f"q{level:g}": answers[:, i] for i, level in enumerate(loss.quantiles)}
            return {"prediction": answers[:, middle], **named_levels}
        if isinstance(loss, named.CrossEntropy):
            shares = np.exp(answers - answers.max(1, keepdims=True))
            shares /= shares.sum(1, keepdims=True)
            texts = self.inputs.column(next(iter(self.task.targets))).texts
            labels = texts if texts is not None and len(texts) == shares.shape[1] else None
            best = shares.argmax(1)
            chosen: Any = best if labels is None else [labels[i] for i in best.tolist()]
            return {"prediction": chosen, **{f"p_{labels[i] if labels else i}": shares[:, i] for i in range(shares.shape[1])}}
        if isinstance(loss, named.Bce):
            return {"prediction": 1 / (1 + np.exp(-np.clip(answers[:, 0], -700, 700)))}
        return {"prediction": answers[:, 0]}
