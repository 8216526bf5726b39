"""Statistics and codes are those of mostlyai-engine, which trains on them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.recipes.tabular.compat_tables import encode_both, every_kind

from stoker_recipes.tabular import compat

pytestmark = [pytest.mark.originals, pytest.mark.filterwarnings("ignore")]
pytest.importorskip("mostlyai.engine", reason="mostlyai-engine is not installed: make test-originals", exc_type=ImportError)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from mostlyai import engine


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads of small operations wait for each other where cores are busy: training took 300 s at a load of 40, and 11 s alone."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


CASES: dict[str, dict[str, Any]] = {
    "sequences": {},
    "nothing missing": {"missing": False},
    "two partitions": {"n_partitions": 2},
    "long sequences": {"longest": 130},
    "not protected": {"value_protection": False},
    "single rows": {"has_key": False},
}


def both(folder: Path, *, missing: bool = True, longest: int | None = None, has_key: bool = True, **options: Any) -> None:
    """The workspace of the package in `theirs`, and that of compat in `ours`."""
    events, context = every_kind(missing=missing, longest=longest)
    if not has_key:
        events = events.drop(columns=["id", "rel"])
    for library, name in ((engine, "theirs"), (compat, "ours")):
        encode_both(library, folder / name, events, context if has_key else None, **options)


def plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else None if pd.isna(value) else value


@pytest.mark.promise("P11")
@pytest.mark.parametrize("case", CASES)
def test_files_are_equal(tmp_path: Path, case: str) -> None:
    both(tmp_path, **CASES[case])
    files = [path for path in (tmp_path / "theirs").rglob("*") if path.is_file()]
    names = {str(path.relative_to(tmp_path / "theirs")) for path in files}
    assert names == {str(path.relative_to(tmp_path / "ours")) for path in (tmp_path / "ours").rglob("*") if path.is_file()}
    assert any("encoded-data" in name for name in names)
    for name in sorted(names):
        one, two = tmp_path / "theirs" / name, tmp_path / "ours" / name
        if name.endswith(".json"):
            assert two.read_text() == one.read_text(), name
        else:
            theirs, ours = pd.read_parquet(one), pd.read_parquet(two)
            assert list(theirs.columns) == list(ours.columns), name
            assert len(theirs) == len(ours) > 0
            for column in theirs.columns:
                assert [plain(value) for value in ours[column]] == [plain(value) for value in theirs[column]], (name, column)


@pytest.mark.promise("P11")
@pytest.mark.parametrize("has_key", [True, False])
def test_the_package_trains_on_codes_of_compat(tmp_path: Path, has_key: bool) -> None:
    events, context = every_kind(missing=False)
    if not has_key:
        events = events.drop(columns=["id", "rel"])
    encode_both(compat, tmp_path, events, context if has_key else None)
    engine.train(workspace_dir=tmp_path, model="MOSTLY_AI/Small", max_epochs=1)
    engine.generate(workspace_dir=tmp_path, sample_size=40)
    rows = pd.read_parquet(tmp_path / "SyntheticData")
    assert len(rows) == 40 if not has_key else rows["id"].nunique() > 10
    assert rows["money"].between(0, 1000).all()
