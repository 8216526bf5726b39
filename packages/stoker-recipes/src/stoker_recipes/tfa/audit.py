"""Audit: checks of the prepared data for mistakes that trainers of this kind have made; each is an error of one line.

    labels      0 where there is no direction, labels without a future, labels that measure volatility
    samples     served twice or never, inputs and labels of different rows, rows before the warm-up, windows across a gap or a series
    split       windows or labels of one block within another
    scaling     mean, deviation or weight of labels from other rows than the training rows

The checks use the data that is fed, not how it was made: labels are computed again, rows are looked up, means are compared. Bars are
checked in `data`, before anything is computed.
"""

from __future__ import annotations

import numpy as np
import torch

import stoker
from stoker.errors import BadValueError, BatchError, LeakError
from stoker.extend import Array
from stoker_recipes.tfa.data import Prepared

TELLING = 0.6  # AUC from which on volatility alone explains a label


def auc(scores: Array, labels: Array) -> float:
    """The area under the ROC curve; nan where there is only one class."""
    metric = stoker.train.AUC()
    metric.update(prediction=torch.from_numpy(np.asarray(scores, dtype=np.float64)), target=torch.from_numpy(np.asarray(labels)))
    return metric.compute()


def check_all(prepared: Prepared) -> list[str]:
    """Run all checks of the prepared data; returns what passed, in words. The first that fails raises."""
    data = (check_labels, check_classes, check_volatility, check_split, check_samples)
    return [check(prepared) for check in (*data, check_served, check_scaler, check_pos_weight)]


def check_labels(prepared: Prepared) -> str:
    """Labels match the bars, and rows without a direction have none."""
    bars, rule, store = prepared.bars, prepared.rule, prepared.store
    if rule.compat:
        return "labels are those of Sentio's trainer (compat): 0 also where there is no direction"
    rows, labels = np.asarray(store.column("row")), np.asarray(store.column("label"))
    ends = bars.offsets[np.searchsorted(bars.offsets, rows, side="right")]
    ahead = np.minimum(rows + rule.horizon, bars.num_bars - 1)
    change = np.log(bars.columns["close"][ahead]) - np.log(bars.columns["close"][rows])
    has_future = rows + rule.horizon < ends
    late = np.flatnonzero(~has_future & np.isfinite(labels))
    if len(late):
        raise LeakError(
            f"{len(late):,} rows have a label but no bar {rule.horizon} ahead in their series, the first "
            f"{bars.place(int(rows[late[0]]))}: such labels are invalid. Mask them (NaN)."
        )
    clear = has_future & (np.abs(change) >= max(rule.least_change, 1e-12))
    if rule.least_volume:
        clear &= bars.columns["volume"][ahead] >= rule.least_volume
    unclear = np.flatnonzero(~clear & np.isfinite(labels))
    if len(unclear) > 1e-3 * len(labels):
        raise BadValueError(
            f"{len(unclear):,} of {len(labels):,} rows do not clear the thresholds of a label but have one, the first "
            f"{bars.place(int(rows[unclear[0]]))}: a model would learn volatility. Mask them (labels: masked)."
        )
    wrong = np.flatnonzero(clear & np.isfinite(labels) & ((change > 0) != (labels > 0.5)) & (np.abs(change) > 1e-9))
    if len(wrong):
        place = bars.place(int(rows[wrong[0]]))
        raise BadValueError(f"the label of {place} is {labels[wrong[0]]:g}, but its close says otherwise.")
    return f"labels have a future and clear the thresholds; {int(np.isnan(labels).sum()):,} rows are masked"


def check_classes(prepared: Prepared) -> str:
    """Each block has labels of both directions, which training and scoring need."""
    labels, said = np.asarray(prepared.store.column("label")), []
    for name in prepared.split.subsets:
        known = labels[prepared.labelled_rows(name)]
        counts = [int((known == label).sum()) for label in (0, 1)]
        if not all(counts):
            raise BadValueError(
                f"the {name} block has {counts[1]:,} labels up and {counts[0]:,} down in {len(known):,} rows; expected some of "
                f"both. Lower price_change_threshold or min_volume_threshold, use more bars, or check the closes."
            )
        said.append(f"{sum(counts):,} {name}")
    return f"labels of both directions in each block: {', '.join(said)}"


def check_volatility(prepared: Prepared) -> str:
    """Trailing volatility alone must not explain the labels."""
    labels, volatility = (np.asarray(prepared.store.column(name)) for name in ("label", "volatility"))
    known = np.isfinite(labels) & np.isfinite(volatility)
    area = auc(volatility[known], labels[known])
    result = f"trailing volatility alone has an AUC of {area:.3f} on the labels"
    if abs(area - 0.5) > TELLING - 0.5:
        if not prepared.rule.compat:
            raise BadValueError(f"{result}: they measure volatility, not direction. Mask rows below the thresholds.")
        return f"{result}: they measure volatility rather than direction (labels: compat). A score on them is not skill"
    return result


def check_split(prepared: Prepared) -> str:
    """No bar is in two blocks, including the bars of labels and indicators."""
    split, rule = prepared.split, prepared.rule
    if split.margins.horizon < rule.horizon:
        raise LeakError(
            f"the split purges {split.margins.horizon} rows before a boundary, but labels look {rule.horizon} ahead: the last labels "
            f"of one block use prices of the next. Split with horizon={rule.horizon}."
        )
    if split.margins.warm_up < prepared.warm_up:
        raise LeakError(
            f"the split leaves {split.margins.warm_up} rows of warm-up after a boundary, but indicators look {prepared.warm_up} "
            f"back. Split with warm_up={prepared.warm_up}."
        )
    stoker.split.check(split)
    times, last = np.asarray(prepared.store.column("ts")), -np.inf
    for name in split.subsets:
        rows = prepared.labelled_rows(name)
        if times[rows].min() <= last:
            raise LeakError(f"the {name} block begins before the previous one ends. Split by time.")
        last = times[rows].max()
    return f"train, validation and score share no bar (horizon {rule.horizon}, warm-up {prepared.warm_up})"


def check_samples(prepared: Prepared) -> str:
    """A sample has consecutive rows of one series after the warm-up, with inputs and labels of the same rows."""
    bars, store, length = prepared.bars, prepared.store, prepared.shape.view.length
    rows, features, labels = (np.asarray(store.column(name)) for name in ("row", "features", "label"))
    place = rows - bars.offsets[np.searchsorted(bars.offsets, rows, side="right") - 1]
    count = 0
    for name in prepared.split.subsets:
        feed = prepared.feed(name, return_index=True)
        starts = feed.samples.locate(np.arange(feed.num_samples)).starts
        count += len(starts)
        early = np.flatnonzero(place[starts] < prepared.warm_up)
        if len(early):
            raise BatchError(
                f"sample {early[0]:,} of {name} begins at {bars.place(int(rows[starts[early[0]]]))}, but features are ready "
                f"from bar {prepared.warm_up + 1} on: it would contain padding. Leave out the rows of the warm-up."
            )
        torn = np.flatnonzero(rows[starts + length - 1] - rows[starts] != length - 1)
        ends = bars.offsets[np.searchsorted(bars.offsets, rows[starts], side="right")]
        torn = torn if len(torn) else np.flatnonzero(rows[starts] + length > ends)
        if len(torn):
            raise BatchError(
                f"sample {torn[0]:,} of {name} crosses the end of a series or a gap: it begins at "
                f"{bars.place(int(rows[starts[torn[0]]]))} and has {length} rows. Keep series apart."
            )
        batch = next(iter(feed))
        valid = batch["valid"].numpy()
        at = (feed.samples.locate(batch["sample"].numpy()[valid]).starts[:, None] + np.arange(length)).reshape(-1)
        inputs = batch["features"].numpy()[valid].reshape(len(at), -1)
        if not np.isfinite(inputs).all() or not inputs.any(axis=1).all():
            raise BatchError(f"a batch of {name} has rows that are empty or padded. Leave out rows that are not ready.")
        targets = batch["label"].numpy()[valid].reshape(-1)
        if not np.array_equal(inputs, features[at]) or not np.array_equal(targets, labels[at], equal_nan=True):
            raise BatchError(f"inputs and labels of a batch of {name} are not of the rows of their sample numbers.")
    return f"{count:,} samples of {length} rows: none across a gap or a series, none before the warm-up"


def check_served(prepared: Prepared) -> str:
    """Each training sample is served once per epoch; where series have weights, samples are drawn by these."""
    feed = prepared.feed("train", return_index=True)
    if len(set(prepared.weights.tolist())) > 1:
        return f"{feed.num_samples:,} training samples are drawn by the weights of their series"
    stoker.audit(feed, ids="sample", once=True).raise_if_bad()
    return f"each of {feed.num_samples:,} training samples is served once per epoch"


def check_scaler(prepared: Prepared) -> str:
    """The scaler was fitted on the training rows alone."""
    prepared.scaler.check(prepared.split)
    return f"the scaler was fitted on {int(prepared.scaler.fitted_on[1]):,} training rows, and no other"


def check_pos_weight(prepared: Prepared) -> str:
    """The weight of labels is that of the training rows."""
    if prepared.pos_weight is None:
        return "labels 0 and 1 weigh the same"
    expected = stoker.split.pos_weight(prepared.store, prepared.split.train, "label")
    if not torch.allclose(prepared.pos_weight.reshape(()), expected, rtol=1e-6):
        raise LeakError(
            f"pos_weight is {float(prepared.pos_weight):.6g}, but the training rows give {float(expected):.6g}: it was "
            f"computed from other rows. Use stoker.split.pos_weight(store, split.train, 'label')."
        )
    return f"pos_weight {float(expected):.4g} is that of the training rows"


def check_model(model: torch.nn.Module, prepared: Prepared) -> None:
    """The mean and deviation within a model are those of the training rows."""
    mean, inv_std = (model.get_buffer(name).cpu() for name in ("mean", "inv_std"))
    if not torch.allclose(mean, prepared.scaler.mean, rtol=1e-5) or not torch.allclose(1 / inv_std, prepared.scaler.std, rtol=1e-4):
        raise LeakError("mean and std within the model are not those of the training rows. Build it with those of the scaler.")
