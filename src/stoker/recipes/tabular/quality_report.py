"""`quality`: how good synthetic events are, as a report with scores, noise and verdicts.

tables -> accuracies of mostlyai-qa (quality_accuracy)
       -> time, order and subjects (quality_sequences)       each beside the noise of two real samples (quality_noise)
       -> classifiers and distances (quality_records)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stoker import _disk
from stoker.errors import OptionError
from stoker.recipes.tabular.quality_accuracy import compare_accuracy
from stoker.recipes.tabular.quality_noise import Measure, make_splits
from stoker.recipes.tabular.quality_page import Contents, render
from stoker.recipes.tabular.quality_records import compare_records
from stoker.recipes.tabular.quality_sequences import compare_sequences, find_time
from stoker.recipes.tabular.quality_tables import Events, join, read_events

LEAST_SUBJECTS = 20
MAX_ROWS = 5000


@dataclass(frozen=True, kw_only=True)
class QualityReport(Contents):
    """How synthetic data compare with real data; `print` shows it, `to_html` and `to_dict` give it away."""

    def __getitem__(self, name: str) -> Measure:
        """A measure by its name."""
        for one in self.measures:
            if one.name == name:
                return one
        raise OptionError(f"the report has no measure {name!r}; it has {', '.join(one.name for one in self.measures)}.")

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and strings, for JSON."""
        return {
            "verdict": self.verdict,
            "seed": self.seed,
            "time": self.time,
            "tables": {name: {"subjects": subjects, "events": events} for name, (subjects, events) in self.sizes.items()},
            "accuracy": {
                name: {"value": one.value, "maximum": one.maximum}
                for name, one in {"overall": self.accuracy.overall, **self.accuracy.parts}.items()
            },
            "similarity": {"cosine": self.records.cosine, "cosine_holdout": self.records.cosine_holdout},
            "distances": {
                name: {
                    "closest": one.closest,
                    "reference": one.reference,
                    "share": one.share,
                    "identical": one.identical,
                    "identical_reference": one.identical_reference,
                    "nearest_ratio": one.ratio,
                }
                for name, one in self.records.proximity.items()
            },
            "measures": {
                one.name: {
                    "score": one.score,
                    "noise": one.noise,
                    "ratio": one.ratio if math.isfinite(one.ratio) else None,
                    "limit": one.limit,
                    "verdict": one.verdict,
                    "columns": {name: each._asdict() for name, each in one.columns.items()},
                    "outliers": one.outliers,
                }
                for one in self.measures
            },
        }

    def to_html(self, path: str | Path | None = None, *, title: str = "synthetic data") -> str:
        """The report as one HTML page without scripts.

        Args:
            path: Where to write it; a path that ends in `.html`.
            title: What was compared.

        Returns:
            The page.

        Raises:
            OptionError: The path is not valid.
        """
        page = render(self, title=title)
        if path is not None:
            _disk.write_file(check_report_path(Path(path)), page.encode(), durable=False)
        return page

    def __str__(self) -> str:
        lines = [f"{'measure':<24} {'score':>7} {'noise':>7} {'ratio':>6}  verdict"]
        for one in self.measures:
            lines.append(f"{one.name:<24} {one.score:7.4f} {one.noise:7.4f} {_ratio(one.ratio):>6}  {one.verdict}")
        accuracy = self.accuracy.overall
        lines.append(f"accuracy {accuracy.value:.1%} (a real sample: {accuracy.maximum:.1%}); overall verdict: {self.verdict}")
        return "\n".join(lines)


def _ratio(ratio: float) -> str:
    return f"{ratio:.1f}x" if math.isfinite(ratio) else "-"


def check_report_path(path: Path) -> Path:
    """Check the path of a report before anything is measured."""
    if path.suffix != ".html":
        raise OptionError(f"{path} ends in {path.suffix!r}; expected a report that ends in '.html'.")
    if not path.absolute().parent.is_dir():
        raise OptionError(f"{path} cannot be written: there is no folder {path.parent}. Create it first.")
    return path


def quality(
    real: Any,
    synthetic: Any,
    *,
    key: str | None = None,
    holdout: Any = None,
    context: Any = None,
    synthetic_context: Any = None,
    holdout_context: Any = None,
    context_key: str | None = None,
    time: str | None = None,
    seed: int = 0,
    max_rows: int = MAX_ROWS,
) -> QualityReport:
    """Compare synthetic data with real data.

    Tables are frames of pandas or polars, Arrow tables, mappings of arrays, or paths. Events of a subject must be in their order.

    Args:
        real: The training data.
        synthetic: The synthetic data, with the same columns.
        key: The column of subjects. Without one, each row is a subject.
        holdout: Real data that the model has not seen; makes the measures of copies much sharper.
        context: One row per subject of the real data, with the column `key`.
        synthetic_context: The same for the synthetic data.
        holdout_context: The same for the holdout.
        context_key: The key of the contexts, where it has another name.
        time: The column of times; by default the first one of a time type.
        seed: Of all random choices. Accuracies are those of mostlyai-qa after `set_random_state(seed)`.
        max_rows: Records or sequences per table for classifiers and distances.

    Returns:
        The report.

    Raises:
        OptionError: A table or an argument is not valid.

    Example:
        >>> from stoker.recipes.tabular import make_bursts
        >>> report = quality(make_bursts(200, seed=0), make_bursts(200, seed=1), key="user_id")
        >>> report["gaps"].verdict
        'same'
    """
    tables = {"real": real, "synthetic": synthetic, **({"holdout": holdout} if holdout is not None else {})}
    given = {"real": context, "synthetic": synthetic_context, "holdout": holdout_context}
    contexts = {name: one for name, one in given.items() if one is not None}
    if contexts and (key is None or set(contexts) != set(tables)):
        missing = ["key"] if key is None else [name for name in tables if name not in contexts]
        raise OptionError(f"a context is given, but none for {', '.join(missing)}; give one for every table, and the key.")
    if isinstance(max_rows, bool) or not isinstance(max_rows, int) or max_rows < LEAST_SUBJECTS:
        raise OptionError(f"max_rows={max_rows!r} is not valid; expected an integer of at least {LEAST_SUBJECTS}.")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise OptionError(f"seed={seed!r} is not valid; expected an integer from 0 to 2**32 - 1.")
    found = read_events(tables, contexts, key=key, context_key=context_key)
    for name, one in found.items():
        if (filled := int((one.lengths > 0).sum())) < LEAST_SUBJECTS:
            word = "rows" if key is None else "subjects with events"
            raise OptionError(
                f"the number of {word} in {name} is {filled}; expected at least {LEAST_SUBJECTS}, as fewer show nothing."
            )
    return _compare(found, key=key, time=time, seed=seed, max_rows=max_rows)


def _compare(found: Mapping[str, Events], *, key: str | None, time: str | None, seed: int, max_rows: int) -> QualityReport:
    mine, synthetic, holdout = found["real"], found["synthetic"], found.get("holdout")
    real = [mine] if holdout is None else [mine, holdout]
    whole = join(real)
    if time is None:
        time = find_time(whole)
    elif time not in whole.columns or whole.columns[time].kind != "time":
        raise OptionError(f"time={time!r} is not a column of times, which are: {_times(whole)}.")
    is_sequence = key is not None and not bool((mine.lengths == 1).all()) and len(mine.columns) > 0
    splits = make_splits(whole.num_subjects, synthetic.num_subjects, np.random.default_rng(seed))
    accuracy = compare_accuracy(real, synthetic, splits, seed=seed, is_sequence=is_sequence)
    sequences = compare_sequences(whole, synthetic, splits, time=time) if is_sequence else None
    records = compare_records(
        mine, synthetic, holdout, seed=seed, max_rows=max_rows, time=time if is_sequence else None, is_sequence=is_sequence
    )
    measures = (*accuracy.measures, *(sequences.measures if sequences else ()), *records.measures)
    return QualityReport(
        measures=measures,
        accuracy=accuracy,
        sequences=sequences,
        records=records,
        sizes={name: (one.num_subjects, one.num_rows) for name, one in found.items()},
        time=time if is_sequence else None,
        seed=seed,
    )


def _times(events: Events) -> str:
    return ", ".join(name for name, values in events.columns.items() if values.kind == "time") or "none"
