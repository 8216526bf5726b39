"""Tables in several files: the same subjects as one table."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import feather, parquet
from tests.recipes.tabular.frames import make_events, make_users

from stoker.errors import SourceError, SourceNotFoundError
from stoker_recipes.tabular import Synthesizer, files
from stoker_recipes.tabular.data import PreparedSubjects, prepare
from stoker_recipes.tabular.files import read_table
from stoker_recipes.tabular.settings import TabularSettings

pytestmark = pytest.mark.scale


def make_mixed(num_subjects: int, rng: np.random.Generator) -> pd.DataFrame:
    """Events with every kind of column; subjects are interleaved, so that most lie in several files."""
    events = make_events(num_subjects, seed=int(rng.integers(1000)))
    count = len(events)
    events["time"] = events["time"].astype("datetime64[us]")  # Parquet has no seconds
    events["end"] = events["time"] + pd.to_timedelta(rng.integers(0, 10**6, count), unit="s").astype("timedelta64[us]")
    events["place"] = [f"{a:.2f}, {b:.2f}" for a, b in zip(rng.uniform(-80, 80, count), rng.uniform(-80, 80, count), strict=True)]
    events["code"] = [f"{n:06d}" for n in rng.integers(0, 10**6, count)]
    events["kind"] = pd.Categorical(rng.choice(["p", "q", "r"], count))
    events["none"] = None
    events["one"] = np.where(
        events["user"] == 3, 5.0, np.round(rng.normal(size=count), 3)
    )  # what one subject repeats is not frequent
    return events.iloc[rng.permutation(count)].sort_values("time", kind="stable").reset_index(drop=True)


def write_parts(events: pd.DataFrame, folder: Path, cuts: Iterable[int], rng: np.random.Generator | None = None) -> list[Path]:
    """Rows between cuts as a file each; also row groups of other sizes, and other kinds of files."""
    folder.mkdir()
    table, found = pa.Table.from_pandas(events, preserve_index=False), []
    edges = [0, *sorted(cuts), len(events)]
    for number, (start, stop) in enumerate(itertools.pairwise(edges)):
        part, is_feather = table.slice(start, stop - start), rng is not None and rng.random() < 0.3
        path = folder / f"{number:02}.{'feather' if is_feather else 'parquet'}"
        if is_feather:
            feather.write_feather(part, path)
        else:
            parquet.write_table(part, path, row_group_size=None if rng is None else int(rng.integers(1, 50)))
        found.append(path)
    return found


def assert_equal(one: PreparedSubjects, other: PreparedSubjects) -> None:
    """Bit for bit, types and places in memory included."""
    assert msgspec.json.encode(one.spec) == msgspec.json.encode(other.spec)
    for a, b in ((one.codes, other.codes), (one.context, other.context), (one.starts, other.starts), (one.lengths, other.lengths)):
        if a is None or b is None:
            assert a is b
            continue
        assert (a.dtype, a.shape, a.strides) == (b.dtype, b.shape, b.strides)
        assert a.tobytes() == b.tobytes()


@pytest.mark.promise("P30")
@pytest.mark.parametrize("num_files", [1, 2, 7])
def test_partitions_are_the_table(num_files: int, tmp_path: Path, rng: np.random.Generator) -> None:
    events, users = make_mixed(60, rng), make_users(70)
    users["since"] = pd.Timestamp("2019-01-01") + pd.to_timedelta(rng.integers(0, 10**8, 70), unit="s").astype("timedelta64[us]")
    cuts = rng.integers(0, len(events), num_files - 1)  # a file may have no rows
    write_parts(events, tmp_path / "events", cuts)
    write_parts(users, tmp_path / "users", [20] if num_files > 1 else [])
    options: dict[str, Any] = {
        "key": "user", "settings": TabularSettings(size="s", seed=int(rng.integers(100)), protect=bool(rng.random() < 0.7)),
        "encodings": {"place": "lat_long", "code": "character"},
    }  # fmt: skip
    said: list[list[tuple[str, str]]] = [[], []]
    [whole], [contexts] = write_parts(events, tmp_path / "one", []), write_parts(users, tmp_path / "ones", [])
    one = prepare(whole, context=contexts, say=lambda *line: said[0].append(line), **options)
    together = prepare(tmp_path / "events", context=str(tmp_path / "users"), say=lambda *line: said[1].append(line), **options)
    assert_equal(together, one)
    assert said[0] == said[1]


def test_files_may_differ_in_how_they_are_written(tmp_path: Path) -> None:
    """Row groups, formats, and the widths that strings and categories have in them."""
    rng = np.random.default_rng(1)
    events = make_mixed(60, rng)
    parts = write_parts(events, tmp_path / "events", [40, 90, 90, 180], rng)
    assert {path.suffix for path in parts} == {".parquet", ".feather"}
    options: dict[str, Any] = {"key": "user", "settings": TabularSettings(size="s"), "say": lambda *_: None}
    one, other = prepare(parts, **options), prepare(events, **options)
    assert one.codes.tobytes() == other.codes.tobytes()


@pytest.mark.promise("P30")
def test_a_value_is_protected_by_subjects_of_all_files(tmp_path: Path) -> None:
    """In each file 4 subjects have the value, which would be too few; in all of them 8. Another one is in all files, of one subject."""
    halves = [pd.DataFrame({"user": np.arange(40), "word": ["common"] * 40}) for _ in range(2)]
    halves[0].loc[:3, "word"] = halves[1].loc[4:7, "word"] = "shared"
    for half in halves:
        half.loc[10, "word"] = "of one"
    many = pd.concat([halves[1].iloc[10:11]] * 50)
    write_parts(pd.concat([*halves, many]), tmp_path / "events", [40, 80])
    prepared = prepare(tmp_path / "events", key="user", settings=TabularSettings(size="s"), say=lambda *_: None)
    assert prepared.spec.target.columns[0].encoding.values == ["common", "shared"]  # type: ignore[union-attr]


@pytest.mark.promise("P30", control=True)
def test_negative_control_the_order_of_files_is_that_of_events(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    parts = write_parts(make_mixed(40, rng), tmp_path / "events", [70])
    settings = TabularSettings(size="s")
    one, other = (
        prepare(given, key="user", settings=settings, say=lambda *_: None, encodings={"time": "datetime", "end": "datetime"})
        for given in (parts, parts[::-1])
    )
    assert one.codes.tobytes() != other.codes.tobytes()


def test_a_run_on_several_files_resumes(tmp_path: Path) -> None:
    parts = write_parts(make_events(40), tmp_path / "events", [50])
    folder = tmp_path / "run"
    model = Synthesizer(size="s", epochs=1).fit(parts, key="user", folder=folder, device="cpu")
    again = Synthesizer(size="s", epochs=1).fit(parts, key="user", folder=folder, resume=True)
    assert model.sample(10).equals(again.sample(10))
    assert Synthesizer.load(folder).sample(20).equals(model.sample(20))


def write_pair(folder: Path, first: dict[str, Any], second: dict[str, Any]) -> Path:
    """Two files of other content."""
    folder.mkdir()
    for name, columns in (("a", first), ("b", second)):
        parquet.write_table(pa.table(columns), folder / f"{name}.parquet")
    return folder


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"k": [1], "x": [1]}, {"k": [1]}, r"from \S+a\.parquet: \S+b\.parquet has no column 'x'. Fix the files"),
        ({"k": [1]}, {"k": [1], "x": [1]}, r"b\.parquet has an extra column 'x'. Fix the files"),
        ({"k": [1], "x": [1]}, {"k": [1], "x": [1.5]}, r"column 'x' of \S+b\.parquet is double, not int64. Fix the files"),
        ({"k": [1, 2]}, {"k": [1, None]}, r"b\.parquet, row 1: the k is missing; expected one for each row"),
        ({"k": [1, 2]}, {"k": [3, 77]}, r"b\.parquet has the k 77 in row 1, which context does not have"),
        (
            {"k": list(range(30)), "x": [1.0] * 30},
            {"k": list(range(30)), "x": [2.0] * 29 + [np.inf]},
            r"b\.parquet, column 'x', row 29: found inf; expected a finite number",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_file(first: dict[str, Any], second: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = write_pair(tmp_path / "events", first, second)
    parquet.write_table(pa.table({"k": list(range(40))}), tmp_path / "users.parquet")
    with pytest.raises(SourceError, match=message):
        prepare(
            folder, key="k", context=tmp_path / "users.parquet", settings=TabularSettings(size="s"), say=lambda *_: None
        )  # fmt: skip


def test_files_of_several_kinds_are_one_table_and_those_that_are_none_are_refused(tmp_path: Path) -> None:
    folder = write_pair(tmp_path / "events", {"x": [1]}, {"x": [2]})
    (folder / "c.csv").write_text("x\n3\n")
    assert read_table(folder, "events")[0]["x"].to_pylist() == [1, 2, 3]
    assert read_table([folder / "c.csv", folder / "a.parquet"], "events")[0]["x"].to_pylist() == [3, 1]
    for given in ([folder / "a.parquet", folder / "d.parquet"], str(folder / "d*.parquet")):
        with pytest.raises(SourceNotFoundError, match=r"d.*\.parquet"):
            read_table(given, "events")
    assert files.place_of(make_events(3), "events", 7) == ("events", 7)


def test_a_type_of_an_empty_column_is_that_of_other_files(tmp_path: Path) -> None:
    for number, values in enumerate([[None, None], [1, 2], [None, 3]]):
        kind = pa.null() if number == 0 else pa.int64()
        parquet.write_table(pa.table({"x": pa.array(values, kind)}), tmp_path / f"{number}.parquet")
    assert read_table(tmp_path, "events")[0]["x"].to_pylist() == [None, None, 1, 2, None, 3]
