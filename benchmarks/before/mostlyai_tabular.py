"""mostlyai-engine itself: split, analyze, encode, train and generate, with the seconds of each.

    python -m benchmarks.before.mostlyai_tabular FOLDER [--wheels FOLDER] [--epochs N] [--batch-size N] [--steps train,generate]

FOLDER has events.parquet and, where there are contexts, users.parquet, both with the key `user`. Its language models, which need other
large packages, are replaced by empty modules, and so is opacus where it cannot be imported: only differential privacy needs it. `--wheels`
unpacks wheels of the package, of opacus and opt-einsum, and of what else is not installed: pydantic, and for its training datasets with
dill and multiprocess. Where datasets cannot be imported, rows come from lists in memory, which is faster. One JSON object per step is
printed as it is measured.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import json
import os
import resource
import sys
import tempfile
import time
import types
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import Any

LANGUAGE = "mostlyai.engine._language"


class Anything:
    """Takes the place of a class or of a decorator."""

    def __init__(self, *args: Any, **options: Any) -> None:
        return None

    def __call__(self, given: Any) -> Any:
        return given


class Empty:
    """Makes empty modules of these packages."""

    def __init__(self, *packages: str) -> None:
        self._packages = packages

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if not any(name == package or name.startswith(f"{package}.") for package in self._packages):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__path__ = []

        def attribute(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (Anything,), {})

        module.__getattr__ = attribute  # type: ignore[method-assign]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        return None


def stand_in_datasets() -> types.ModuleType:
    """What mostlyai-engine needs of datasets, with all rows in memory."""

    def load_dataset(kind: str, data_files: list[str]) -> dict[str, Any]:
        from pyarrow import parquet

        return {"train": parquet.read_table(data_files).to_pylist()}

    found = types.ModuleType("datasets")
    found.load_dataset, found.disable_progress_bar = load_dataset, lambda: None  # type: ignore[attr-defined]
    return found


def replace_missing() -> list[str]:
    """Replace what cannot be imported; returns the names."""
    found = []
    try:
        import datasets  # type: ignore[import-untyped, unused-ignore]  # noqa: F401
    except Exception:  # it checks the versions of others, too
        sys.modules["datasets"] = stand_in_datasets()
        found.append("datasets")
    try:
        import opacus.grad_sample  # type: ignore[import-not-found, import-untyped, unused-ignore]
        import opacus.layers  # type: ignore[import-not-found, import-untyped, unused-ignore]  # noqa: F401
    except Exception:
        for name in [name for name in sys.modules if name.partition(".")[0] == "opacus"]:
            del sys.modules[name]
        sys.meta_path.insert(0, Empty("opacus"))  # type: ignore[arg-type]
        found.append("opacus")
    return found


def use_wheels(wheels: Path | None, place: Path) -> list[str]:
    """Unpack wheels to a folder, import from there, and replace what cannot be imported; returns the names of that."""
    if wheels is not None:
        for wheel in wheels.glob("*.whl"):
            zipfile.ZipFile(wheel).extractall(place)
        sys.path.insert(0, str(place))
        os.environ["LOKY_MAX_CPU_COUNT"] = "1"  # processes of joblib would not find the unpacked packages
    sys.meta_path.insert(0, Empty(LANGUAGE))  # type: ignore[arg-type]
    return replace_missing()


def cpu_seconds() -> float:
    """Of this process, and of those that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def measure(name: str, work: Any, **facts: Any) -> None:
    wall, cpu = time.perf_counter(), cpu_seconds()
    found = work()
    line = {"step": name, "seconds": round(time.perf_counter() - wall, 3), "cpu_seconds": round(cpu_seconds() - cpu, 3)}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({**line, "peak_bytes": peak, **facts, **(found or {})}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("--epochs", type=float, default=3)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--model", default="MOSTLY_AI/Medium")
    parser.add_argument("--relative", default="", help="Columns of relative dates, by comma.")
    parser.add_argument("--steps", default="train,generate")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        run(options, Path(place) / "workspace", use_wheels(options.wheels, Path(place) / "packages"))


def run(options: Any, workspace: Path, replaced: list[str]) -> None:
    import pandas as pd
    from mostlyai import engine  # type: ignore[import-not-found, import-untyped, unused-ignore]

    events = pd.read_parquet(options.folder / "events.parquet")
    has_key = "user" in events
    users = pd.read_parquet(options.folder / "users.parquet") if (options.folder / "users.parquet").exists() else None
    keys = {"tgt_context_key": "user"} if has_key else {}
    if users is not None:
        keys |= {"ctx_data": users, "ctx_primary_key": "user"}
    if options.relative:
        types_of = {name: "TABULAR_NUMERIC_AUTO" if pd.api.types.is_numeric_dtype(kind) else "TABULAR_CATEGORICAL"
                    for name, kind in events.drop(columns=["user"], errors="ignore").dtypes.items()}  # fmt: skip
        keys["tgt_encoding_types"] = types_of | dict.fromkeys(options.relative.split(","), "TABULAR_DATETIME_RELATIVE")
    facts = {"events": len(events), "version": engine.__version__, "replaced": replaced}
    measure("split", lambda: engine.split(events, workspace_dir=workspace, model_type="TABULAR", **keys), **facts)
    measure("analyze", lambda: engine.analyze(workspace_dir=workspace))
    measure("encode", lambda: engine.encode(workspace_dir=workspace))
    if "train" in options.steps:
        measure("train", lambda: train(engine, options, workspace))
    if "generate" in options.steps:
        measure("generate", lambda: generate(engine, workspace))


def train(engine: Any, options: Any, workspace: Path) -> dict[str, Any]:
    messages: list[tuple[float, float]] = []

    def progress(total: Any = None, completed: Any = None, advance: Any = None, message: Any = None, **rest: Any) -> None:
        if message is not None:
            entry = message if isinstance(message, dict) else message.model_dump()
            messages.append((float(entry["epoch"]), time.perf_counter()))

    engine.train(
        model=options.model, max_epochs=options.epochs, batch_size=options.batch_size, workspace_dir=workspace, update_progress=progress
    )  # fmt: skip
    whole = [(epoch, seconds) for epoch, seconds in messages if epoch >= 1 and epoch == int(epoch)]
    seconds = [round(b[1] - a[1], 3) for a, b in pairwise(whole) if b[0] == a[0] + 1]
    return {"epoch_seconds": seconds, "epochs": whole[-1][0] if whole else 0}


def generate(engine: Any, workspace: Path) -> dict[str, Any]:
    import pandas as pd

    engine.generate(workspace_dir=workspace)
    return {"generated": len(pd.read_parquet(workspace / "SyntheticData"))}


if __name__ == "__main__":
    main()
