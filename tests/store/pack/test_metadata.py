"""metadata=: the facts of each series are those of its row in the table, whatever the order of both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.store.pack.test_packer_resume import LIMITS, Reports, Stopped, contents, scattered
from tests.store.shrink import shrunk

from stoker.errors import BadValueError, OptionError, SourceError, SourceTooLargeError
from stoker.store.inspect import verify
from stoker.store.pack import metadata as metadatas
from stoker.store.pack.api import pack
from stoker.store.store import Store

EVENTS = {"user": ["b", "a", "b", "c"], "x": [1.0, 2.0, 3.0, 4.0]}
USERS: dict[str, Any] = {
    "user": ["c", "a", "b"],
    "country": ["FR", "DE", None],
    "label": [2, 0, 1],
    "born": np.array(["2001-01-01", "1999-05-05", "NaT"], dtype="datetime64[D]"),
}


def facts(store: Store, name: str) -> list[Any]:
    """The values of a column per series, as a user thinks of them."""
    column = store.schema[name]
    assert column.level == "series"
    if column.kind == "category":
        return [None if code < 0 else store.texts(name)[code] for code in store.column(name)]
    return list(store.texts(name)) if column.kind == "text" else store.column(name).tolist()


def as_csv(folder: Path) -> Path:
    (folder / "users.csv").write_text("user,country,label,born\nc,FR,2,2001-01-01\na,DE,0,1999-05-05\nb,,1,\n")
    return folder / "users.csv"


def as_parquet(folder: Path) -> Path:
    pq.write_table(pa.table(USERS), folder / "users.parquet")
    return folder / "users.parquet"


FORMS: dict[str, Callable[[Path], object]] = {
    "dict of arrays": lambda folder: USERS,
    "csv": as_csv,
    "parquet": as_parquet,
    "path as text": lambda folder: str(as_csv(folder)),
    "arrow": lambda folder: pa.table(USERS),
    "pandas": lambda folder: pd.DataFrame(USERS),
    "pandas, key as index": lambda folder: pd.DataFrame(USERS).set_index("user"),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_table_is_joined_by_the_key_whatever_it_is_given_as(tmp_path: Path, form: str) -> None:
    store = pack(EVENTS, tmp_path / "out", series="user", metadata=FORMS[form](tmp_path))
    assert list(store.schema) == ["user", "x", "country", "label", "born"]
    assert list(store.texts("user")) == ["a", "b", "c"]
    assert (facts(store, "country"), facts(store, "label")) == (["DE", None, "FR"], [0, 1, 2])
    assert list(store.texts("country")) == ["DE", "FR"], "sorted, so that codes do not depend on the order of rows"
    assert store.schema["country"].missing == 1
    assert store.schema["born"].kind == "timestamp"
    assert store.column("born")[1] == np.iinfo(np.int64).min
    assert verify(tmp_path / "out").digest == store.digest


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), is_text=st.booleans(), segment=st.sampled_from([None, 2]))
def test_joins_are_those_of_a_dict(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, is_text: bool, segment: int | None
) -> None:
    folder = tmp_path_factory.mktemp("metadata")
    keys = data.draw(st.lists(st.integers(-5, 5), min_size=1, max_size=20))
    listed = data.draw(st.lists(st.integers(-7, 7), unique=True, min_size=1))
    words = data.draw(st.lists(st.sampled_from([None, "x", "yy", "ä"]), min_size=len(listed), max_size=len(listed)))
    name = (lambda key: f"s{key}") if is_text else int
    table = {"k": [name(key) for key in keys], "v": list(range(len(keys)))}
    metadata = pa.table(
        {"k": [name(key) for key in listed], "word": pa.array(words, pa.string()), "n": pa.array(range(len(listed)))}
    )
    word, number = ({name(key): values[i] for i, key in enumerate(listed)} for values in (words, range(len(listed))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metadatas, "_PART", 3)
        store = pack(table, folder / "out", series="k", segment=segment, metadata=metadata, metadata_missing="null")
    series = [one["k"] for one in store]
    assert facts(store, "word") == [word.get(key) for key in series]
    np.testing.assert_array_equal(np.asarray(facts(store, "n"), float), [float(number.get(key, np.nan)) for key in series])
    without, unused = set(table["k"]) - set(word), set(word) - set(table["k"])
    assert store.schema["n"].dtype == (np.float64 if without else np.int64)
    if without or unused:
        with pytest.raises(BadValueError, match=r"metadata_missing='null'") as caught:
            pack(table, folder / "other", series="k", metadata=metadata)
        assert all(repr(key) in str(caught.value) for key in sorted(without)[:5])
        assert (f"{len(unused):,} rows of metadata= have no series" in str(caught.value)) == bool(unused)


def test_files_and_wide_columns_have_metadata_by_their_names(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text("x,y\n1,2\n3,4\n")
    sources = str(tmp_path / "?.csv")
    store = pack(sources, tmp_path / "files", metadata={"series": ["b.csv", "a.csv"], "site": ["B", "A"]})
    assert facts(store, "site") == ["A", "B"]
    names = list(pack(sources, tmp_path / "plain", wide=True).texts("series"))
    wide = pack(sources, tmp_path / "wide", wide=True, metadata={"id": names, "site": ["p", "q", "r", "s"]}, metadata_key="id")
    assert facts(wide, "site") == ["p", "q", "r", "s"]


def test_categories_of_the_table_keep_their_order(tmp_path: Path) -> None:
    sizes = pd.Categorical(["small", "large", "small"], categories=["small", "medium", "large"])
    store = pack(EVENTS, tmp_path / "out", series="user", metadata=pd.DataFrame({"user": ["a", "b", "c"], "size": sizes}))
    assert list(store.texts("size")) == ["small", "medium", "large"]
    assert store.column("size").tolist() == [0, 2, 0]


def test_types_by_name_and_vectors(tmp_path: Path) -> None:
    users = {"user": ["a", "b", "c"], "zip": ["1", "2", "3"], "label": [1, 0, 1], "vector": np.arange(6.0).reshape(3, 2)}
    dtype = {"zip": "text", "label": "category", "vector": "float32", "x": "float32"}
    store = pack(EVENTS, tmp_path / "out", series="user", metadata=users, dtype=dtype, segment=1)
    assert store.schema["zip"].kind == "text"
    assert store.schema["label"].kind == "category"
    assert store.schema["vector"].width == 2
    assert store.schema["vector"].dtype == np.float32 == store.schema["x"].dtype
    assert store.column("vector").tolist() == [[0, 1], [2, 3], [2, 3], [4, 5]], "segments repeat the values of their series"


def test_keys_that_look_like_numbers_stay_strings_where_the_source_has_strings(tmp_path: Path) -> None:
    (tmp_path / "users.csv").write_text("user,site\n007,A\n08,B\n")
    events = {"user": ["007", "08"], "x": [1, 2]}
    assert facts(pack(events, tmp_path / "out", series="user", metadata=tmp_path / "users.csv"), "site") == ["A", "B"]


def test_a_stopped_pack_with_metadata_ends_in_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    scattered(tmp_path / "in")
    users = {"k": [f"key {i}" for i in range(9)], "site": [f"site {i % 2}" for i in range(9)]}
    with shrunk(**LIMITS):
        whole = Reports()
        expected = contents(pack(tmp_path / "in", tmp_path / "whole", series="k", metadata=users, progress=whole))
        for stop in (len(whole.seen) // 2, len(whole.seen) - 1):
            with pytest.raises(Stopped):
                pack(tmp_path / "in", tmp_path / f"{stop}", series="k", metadata=users, progress=Reports(stop))
            assert contents(pack(tmp_path / "in", tmp_path / f"{stop}", series="k", metadata=users)) == expected


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "series without": (
        {"metadata": {"user": ["a"], "n": [1]}},
        r"2 series have no metadata: 'b', 'c'. Fix <dict>, or pass metadata_missing='null'",
    ),
    "metadata without": (
        {"metadata": {"user": list("abcdefghij"), "n": [0] * 10}},
        r"7 rows of metadata= have no series: 'd', 'e', 'f', 'g', 'h' and 2 more",
    ),
    "no key": (
        {"metadata": {"id": ["a"], "n": [1]}},
        r"no column 'user' .* has the columns id, n. Name that column with metadata_key=",
    ),
    "nothing else": ({"metadata": {"user": ["a"]}}, r"no column beside the key 'user'"),
    "twice": ({"metadata": {"user": ["a", "b", "a"], "n": [1, 2, 3]}}, r"several rows for user 'a'; expected one per series"),
    "null key": ({"metadata": {"user": ["a", None], "n": [1, 2]}}, r"the key 'user' is missing in row 2 of <dict>"),
    "other type": ({"metadata": {"user": [1, 2], "n": [1, 2]}}, r"'user' of metadata= is int64, but 'user' of <dict> is string"),
    "same name": ({"metadata": {"user": ["a"], "x": [1]}}, r"metadata= has a column 'x', and so has <dict>"),
    "ragged": (
        {"metadata": {"user": ["a", "b"], "v": [[1], [1, 2]]}},
        r"holds lists of 1 to 2 values; expected lists of one length",
    ),
    "policy": ({"metadata": USERS, "metadata_missing": "drop"}, r"metadata_missing='drop' is invalid"),
    "where": (
        {"metadata": USERS, "where": "country == 'DE'"},
        r"where= uses 'country', which is a column of metadata=.*stoker.split.where\(store, view",
    ),
    "gone": ({"metadata": "gone.csv"}, r"gone.csv does not exist"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_by_name(tmp_path: Path, case: str) -> None:
    options, text = REFUSED[case]
    with pytest.raises((OptionError, SourceError), match=text):
        pack(EVENTS, tmp_path / "out", series="user", **options)
    assert not (tmp_path / "out").exists()


def test_rows_that_are_series_need_a_key_and_large_tables_memory(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"so it needs series="):
        pack({"x": [[1, 2], [3]]}, tmp_path / "out", metadata={"series": ["a"], "n": [1]})
    with pytest.raises(OptionError, match=r"but these have none"):
        pack({"x": [1, 2]}, tmp_path / "out", metadata={"series": ["a"], "n": [1]})
    many = {"user": np.arange(2_000_000), "n": np.arange(2_000_000)}
    with pytest.raises(SourceTooLargeError, match=r"metadata= has 30 MB, but is held in memory"):
        pack({"user": [1], "x": [1]}, tmp_path / "out", series="user", metadata=many, memory="192MB")


def test_missing_integers_that_a_float_would_round_are_refused(tmp_path: Path) -> None:
    users = {"user": ["a"], "id": [2**60 + 1]}
    with pytest.raises(BadValueError, match=r"column 'id' of metadata= is missing for some series"):
        pack(EVENTS, tmp_path / "out", series="user", metadata=users, metadata_missing="null")


def test_negative_control_without_the_check_strangers_pass(tmp_path: Path) -> None:
    store = pack(EVENTS, tmp_path / "out", series="user", metadata={"user": ["a", "z"], "n": [1, 2]}, metadata_missing="null")
    np.testing.assert_array_equal(store.column("n"), [1.0, np.nan, np.nan])
    assert store.manifest is not None
    assert store.manifest.notes == ["2 series have no metadata, and 1 rows of the metadata have no series"]
