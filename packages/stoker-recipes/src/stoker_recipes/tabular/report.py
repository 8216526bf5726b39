"""`quality`: how good synthetic rows are, by the report of mostlyai-qa."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from stoker import store
from stoker.errors import OptionError
from stoker.extend import disk
from stoker_recipes.tabular.files import key_column

LEAST = {"real": 90, "synthetic": 100, "holdout": 10}
"""Subjects that mostlyai-qa needs: with fewer it measures nothing."""


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
    seed: int = 0,
    report: str | Path | None = None,
) -> dict[str, Any]:
    """Compare synthetic data with real data by mostlyai-qa (extra `qa`), whose documentation explains the metrics.

    Tables are files, or frames of pandas, Polars or Arrow. Events of a subject must be in their order.

    Args:
        real: The training data.
        synthetic: The synthetic data, with the same columns.
        key: The column of subjects. Without one, each row is a subject.
        holdout: Real data that the model has not seen: the reference of classifiers and distances.
        context: One row per subject of the real data.
        synthetic_context: The same for the synthetic data.
        holdout_context: The same for the holdout.
        context_key: The key of the contexts, where it has another name.
        seed: Of all random choices.
        report: Where to write an HTML report; a path that ends in `.html`.

    Returns:
        The metrics, in groups: accuracy, similarity and distances.

    Raises:
        OptionError: mostlyai-qa is not installed, or a table or an argument is invalid.
    """
    _check_options(report)
    tables = {"real": real, "synthetic": synthetic, **({"holdout": holdout} if holdout is not None else {})}
    contexts = {"real": context, "synthetic": synthetic_context, "holdout": holdout_context}
    contexts = {name: table for name, table in contexts.items() if table is not None}
    if contexts and (key is None or set(contexts) != set(tables)):
        missing = ["key"] if key is None else [name for name in tables if name not in contexts]
        raise OptionError(f"a context is given, but none for {', '.join(missing)}; give one for every table, and the key.")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise OptionError(f"seed={seed!r} is not valid; expected an integer from 0 to 2**32 - 1.")
    frames = {name: _read(name, table, key) for name, table in tables.items()}
    facts = {name: _read(f"{name}_context", table, context_key or key) for name, table in contexts.items()}
    for name, frame in frames.items():
        if unknown := [column for column in frames["real"].columns if column not in frame.columns]:
            raise OptionError(f"{name} has no column {unknown[0]!r}, which real has; it has {', '.join(frame.columns)}.")
        count = len(facts[name]) if name in facts else len(frame) if key is None else frame[key].nunique()
        if count < LEAST[name]:
            raise OptionError(f"{name} has {count:,} {'rows' if key is None else 'subjects'}; mostlyai-qa needs {LEAST[name]}.")
    shorter = {"real": "trn", "synthetic": "syn", "holdout": "hol"}
    options = {f"{shorter[name]}_tgt_data": frame for name, frame in frames.items()}
    options |= {f"{shorter[name]}_ctx_data": frame for name, frame in facts.items()}
    from mostlyai import qa

    with disk.temporary_folder() as folder, _seeded(seed):
        path = Path(report) if report is not None else folder / "report.html"
        _, metrics = qa.report(
            **options, tgt_context_key=key, ctx_primary_key=(context_key or key) if facts else None, report_path=path
        )  # fmt: skip
    values: dict[str, Any] = metrics.model_dump(exclude_none=True)
    return values


def _check_options(report: str | Path | None) -> None:
    """Check what a report needs before anything is read.

    Raises:
        OptionError: mostlyai-qa is not installed, or the path is invalid.
    """
    try:
        import mostlyai.qa  # noqa: F401
    except ImportError as error:
        raise OptionError(
            f"quality is measured by mostlyai-qa, which cannot be imported ({error}). In the folder of a clone of "
            "Stoker: pip install './packages/stoker-recipes[qa]'"
        ) from None
    if report is None:
        return
    path = Path(report)
    if path.suffix != ".html":
        raise OptionError(f"{path} ends in {path.suffix!r}; expected a report that ends in '.html'.")
    if not path.absolute().parent.is_dir():
        raise OptionError(f"{path} cannot be written: there is no folder {path.parent}. Create it first.")


def _read(name: str, source: Any, key: str | None) -> Any:
    """Read a table, check its key, and return it as a frame of pandas."""
    table = store.read_table(source)
    if key is not None:
        key_column(table, key, name)
    return table.to_pandas(date_as_object=False)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the generators from which mostlyai-qa draws, and put their states back."""
    before = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
