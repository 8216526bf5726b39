"""Files, codes, values and weights are those of mostlyai-engine; each library opens the workspace of the other."""

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

from stoker.recipes.tabular import compat
from stoker.recipes.tabular.compat_model import SIZES, layout_of, model_units, read_stats, spec_of, workspace_weights
from stoker.recipes.tabular.compat_workspace import Workspace, column_names
from stoker.recipes.tabular.model import TabularModel
from stoker.recipes.tabular.tables import decode_table

pytestmark = [pytest.mark.originals, pytest.mark.filterwarnings("ignore")]
pytest.importorskip("mostlyai.engine", reason="mostlyai-engine is not installed: make test-originals", exc_type=ImportError)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from mostlyai import engine
    from mostlyai.engine._tabular import argn, generation


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


@pytest.fixture(scope="module")
def workspaces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("workspaces")
    both(folder)
    return folder


def test_values_of_codes(workspaces: Path, rng: np.random.Generator) -> None:
    """Any codes decode to the same values; numbers drawn from an interval lie in the same one."""
    stats = read_stats(Workspace(folder=workspaces / "theirs"))
    entries = stats["tgt"]["columns"]
    lengths = rng.integers(1, 9, 60)
    names = [name for entry in entries.values() for name in column_names(entry)]
    sizes = [size for entry in entries.values() for size in entry["cardinalities"].values()]
    codes = np.stack([rng.integers(0, size, lengths.sum()) for size in sizes], 1)
    frame = pd.DataFrame(codes.astype(np.int32), columns=names)
    frame.insert(0, "id", np.repeat(np.arange(60), lengths))
    expected = generation._decode_df(frame, stats["tgt"], context_key="id")
    spec = spec_of(stats, "s").target
    starts = np.cumsum(lengths) - lengths
    found = decode_table(codes, spec, starts=starts, uniform=rng.random((len(codes), len(entries)))).to_pandas()
    for name, entry in entries.items():
        one, two = expected[name], found[name]
        if entry.get("no_of_rare_categories") == 0:  # a class that is never generated is missing here and `_RARE_` there
            one = one.mask(frame[column_names(entry)[0]] == 0)
        if entry["encoding_type"] in ("TABULAR_NUMERIC_BINNED", "TABULAR_NUMERIC_DISCRETE"):
            assert (two[one.isna().to_numpy()].isna()).all()
            codes_of = frame[column_names(entry)[0]].to_numpy()
            known = codes_of >= len(entry["codes"]) if "bins" in entry else codes_of > 0
            a, b = one[known].astype(float), two[known].astype(float)
            if "bins" in entry:
                edges = np.array(entry["bins"])
                place = codes_of[known] - len(entry["codes"])
                assert (np.abs(a - b) <= edges[place + 1] - edges[place] + 1e-9).all(), name
                a, b = one[codes_of == entry["codes"]["<<MAX>>"]], two[codes_of == entry["codes"]["<<MAX>>"]]
            assert a.fillna(-1).tolist() == b.fillna(-1).tolist(), name
            continue
        assert [plain(value) for value in one] == [plain(value) for value in two], name


@pytest.mark.parametrize("model", SIZES)
def test_weights_have_the_names_and_shapes_of_the_package(workspaces: Path, model: str) -> None:
    stats = read_stats(Workspace(folder=workspaces / "ours"))
    layout = layout_of(stats, SIZES[model])
    theirs = argn.SequentialModel(
        tgt_cardinalities={sub.name: sub.num_classes for sub in layout.subs},
        ctx_cardinalities={sub.name: sub.num_classes for sub in layout.context},
        tgt_seq_len_median=stats["tgt"]["seq_len"]["median"],
        tgt_seq_len_max=stats["tgt"]["seq_len"]["max"],
        ctxseq_len_median={},
        model_size=argn.ModelSize(SIZES[model].upper()),
        column_order=None,
        device=torch.device("cpu"),
    )
    assert model_units(layout) == argn.get_model_units(theirs)
    ours = workspace_weights(TabularModel(layout))
    assert {name: tuple(one.shape) for name, one in ours.items()} == {
        name: tuple(one.shape) for name, one in theirs.state_dict().items()
    }
    theirs.load_state_dict(ours)  # strictly


@pytest.mark.parametrize("has_key", [True, False])
def test_each_opens_the_workspace_of_the_other(tmp_path: Path, has_key: bool) -> None:
    """Train with one library, on codes of the other, and generate with the other."""
    both(tmp_path, has_key=has_key, missing=False)
    for trainer, generator, name in ((engine, compat, "ours"), (compat, engine, "theirs")):
        folder = tmp_path / name  # the codes are those of the library that generates
        trainer.train(workspace_dir=folder, model="MOSTLY_AI/Small", max_epochs=1)
        generator.generate(workspace_dir=folder, sample_size=40)
        found = pd.read_parquet(folder / "SyntheticData")
        assert len(found) == 40 if not has_key else found["id"].nunique() > 10
        assert found["money"].between(0, 1000).all()
        if trainer is engine:  # the same weights give the same lengths and values with the package's generator
            engine.generate(workspace_dir=folder, sample_size=40)
            other = pd.read_parquet(folder / "SyntheticData")
            assert set(found.columns) == set(other.columns)
            kinds = {name: str(kind) for name, kind in found.dtypes.items() if str(kind)[:4] in ("Int6", "Floa", "int6")}
            assert kinds == {name: str(other.dtypes[name]) for name in kinds}
