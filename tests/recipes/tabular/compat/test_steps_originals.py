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
from tests.recipes.tabular.compat_tables import TYPES, every_kind

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
    "two partitions": {"parts": 2},
    "long sequences": {"longest": 130},
    "not protected": {"protect": False},
    "single rows": {"has_key": False},
}


def prepared(folder: Path, *, missing: bool = True, longest: int | None = None, has_key: bool = True, parts: int = 1) -> Path:
    """The workspace of `engine.split`."""
    events, context = every_kind(missing=missing, longest=longest)
    keys: dict[str, Any] = {"ctx_data": context, "ctx_primary_key": "uid", "tgt_context_key": "id"}
    if not has_key:
        events, keys = events.drop(columns=["id", "rel"]), {}
    types = {name: kind for name, kind in TYPES.items() if name in events.columns}
    engine.set_random_state(3)
    engine.split(events, tgt_encoding_types=types, workspace_dir=folder, n_partitions=parts, **keys)
    return folder


def encode(library: Any, folder: Path, *, protect: bool = True) -> None:
    engine.set_random_state(4)
    library.analyze(workspace_dir=folder, value_protection=protect)
    library.encode(workspace_dir=folder)


def plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else None if pd.isna(value) else value


@pytest.mark.promise("P11")
@pytest.mark.parametrize("case", CASES)
def test_files_are_equal(tmp_path: Path, case: str) -> None:
    options = dict(CASES[case])
    protect = options.pop("protect", True)
    for library, name in ((engine, "theirs"), (compat, "ours")):
        encode(library, prepared(tmp_path / name, **options), protect=protect)
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


@pytest.fixture
def subnormals() -> Iterator[None]:
    """Keep subnormal numbers: `engine.train` flushes them to zero in this process, which tests of all floats would see."""
    yield
    torch.set_flush_denormal(False)


@pytest.mark.promise("P11")
@pytest.mark.usefixtures("subnormals")
@pytest.mark.parametrize("has_key", [True, False])
def test_the_package_trains_on_codes_of_compat(tmp_path: Path, has_key: bool) -> None:
    encode(compat, prepared(tmp_path, missing=False, has_key=has_key))
    engine.train(workspace_dir=tmp_path, model="MOSTLY_AI/Small", max_epochs=1)
    engine.generate(workspace_dir=tmp_path, sample_size=40)
    rows = pd.read_parquet(tmp_path / "SyntheticData")
    assert len(rows) == 40 if not has_key else rows["id"].nunique() > 10
    assert rows["money"].between(0, 1000).all()
