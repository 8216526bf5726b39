"""Tables in several files: the same subjects as one file, by this process and by tasks in any order."""

from __future__ import annotations

import itertools
import os
import pickle
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import feather, parquet
from tests.recipes.tabular.frames import make_events, make_users

from stoker.errors import BadValueError, OptionError, SourceChangedError, SourceEmptyError, SourceNotFoundError
from stoker.recipes.tabular import Synthesizer, files, tables
from stoker.recipes.tabular.files import Partitions, find_files, read_files
from stoker.recipes.tabular.subjects import PreparedSubjects, TabularSettings, prepare


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


def in_any_order(rng: np.random.Generator) -> Callable[..., list[Any]]:
    """Runs tasks as a cluster does: what is sent is pickled, tasks end in any order, and some run twice."""

    def run_tasks(address: str, work: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        assert address == "ray"
        many, found = list(items), {}
        sent = pickle.dumps(work)
        for place in [*rng.permutation(len(many)), *rng.integers(len(many), size=2)]:
            found[int(place)] = pickle.loads(pickle.dumps(pickle.loads(sent)(many[place])))
        return [found[place] for place in range(len(many))]

    return run_tasks


def assert_equal(one: PreparedSubjects, other: PreparedSubjects) -> None:
    """Bit for bit, types and places in memory included."""
    assert msgspec.json.encode(one.spec) == msgspec.json.encode(other.spec)
    for a, b in ((one.codes, other.codes), (one.context, other.context), (one.starts, other.starts), (one.lengths, other.lengths)):
        if a is None or b is None:
            assert a is b
            continue
        assert (a.dtype, a.shape, a.strides) == (b.dtype, b.shape, b.strides)
        assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("num_files", [1, 2, 7])
def test_partitions_are_the_table(
    num_files: int, tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, users = make_mixed(60, rng), make_users(70)
    users["since"] = pd.Timestamp("2019-01-01") + pd.to_timedelta(rng.integers(0, 10**8, 70), unit="s").astype("timedelta64[us]")
    cuts = rng.integers(0, len(events), num_files - 1)  # a file may have no rows
    parts = write_parts(events, tmp_path / "events", cuts)
    write_parts(users, tmp_path / "users", [20] if num_files > 1 else [])
    write_parts(events, tmp_path / "one", []), write_parts(users, tmp_path / "ones", [])
    options: dict[str, Any] = {
        "key": "user", "settings": TabularSettings(size="s", seed=int(rng.integers(100)), protect=bool(rng.random() < 0.7)),
        "encodings": {"place": "lat_long", "code": "character"},
    }  # fmt: skip
    said: list[list[tuple[str, str]]] = [[], [], []]
    one = prepare(
        tmp_path / "one" / "00.parquet", context=tmp_path / "ones" / "00.parquet", say=lambda *line: said[0].append(line), **options
    )
    together = prepare(tmp_path / "events", context=str(tmp_path / "users"), say=lambda *line: said[1].append(line), **options)
    monkeypatch.setattr(tables, "run_tasks", in_any_order(rng))
    shared = prepare(parts, context=tmp_path / "users", say=lambda *line: said[2].append(line), on="ray", **options)
    assert_equal(together, one)
    assert_equal(shared, one)
    assert said[0] == said[1] == said[2]


def test_files_may_differ_in_how_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups, formats, and the widths that strings and categories have in them."""
    rng = np.random.default_rng(1)
    parts = write_parts(make_mixed(60, rng), tmp_path / "events", [40, 90, 90, 180], rng)
    assert {path.suffix for path in parts} == {".parquet", ".feather"}
    monkeypatch.setattr(tables, "run_tasks", in_any_order(rng))
    options: dict[str, Any] = {"key": "user", "settings": TabularSettings(size="s"), "say": lambda *_: None}
    assert_equal(prepare(parts, on="ray", **options), prepare(parts, **options))


def test_a_value_is_protected_by_subjects_of_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In each file 4 subjects have the value, which would be too few; in all of them 8. Another one is in all files, of one subject."""
    rng = np.random.default_rng(0)
    monkeypatch.setattr(tables, "run_tasks", in_any_order(rng))
    halves = [pd.DataFrame({"user": np.arange(40), "word": ["common"] * 40}) for _ in range(2)]
    halves[0].loc[:3, "word"] = halves[1].loc[4:7, "word"] = "shared"
    for half in halves:
        half.loc[10, "word"] = "of one"
    many = pd.concat([halves[1].iloc[10:11]] * 50)
    write_parts(pd.concat([*halves, many]), tmp_path / "events", [40, 80])
    for on in (None, "ray"):
        found = prepare(tmp_path / "events", key="user", settings=TabularSettings(size="s"), say=lambda *_: None, on=on)
        assert found.spec.target.columns[0].encoding.values == ["common", "shared"]  # type: ignore[union-attr]


def test_negative_control_the_order_of_files_is_that_of_events(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    parts = write_parts(make_mixed(40, rng), tmp_path / "events", [70])
    settings = TabularSettings(size="s")
    one, other = (
        prepare(given, key="user", settings=settings, say=lambda *_: None, encodings={"time": "datetime", "end": "datetime"})
        for given in (parts, parts[::-1])
    )
    assert one.codes.tobytes() != other.codes.tobytes()


def test_a_run_on_several_files_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "run_tasks", in_any_order(np.random.default_rng(0)))
    parts = write_parts(make_events(40), tmp_path / "events", [50])
    made = {}
    for on, given in ((None, tmp_path / "events"), ("ray", [str(path) for path in parts])):
        folder = tmp_path / f"run-{on}"
        model = Synthesizer(size="s", epochs=1).fit(given, key="user", folder=folder, device="cpu", on=on)
        assert model.sample(10).equals(
            Synthesizer(size="s", epochs=1).fit(given, key="user", folder=folder, resume=True).sample(10)
        )
        made[on] = Synthesizer.load(folder)
    assert made[None].sample(20).equals(made["ray"].sample(20))


def test_files_are_found_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_parts(make_events(8), tmp_path / "events", [10, 20])
    (tmp_path / "events" / "README.txt").write_text("what this is")
    (tmp_path / "events" / "_SUCCESS").touch()
    monkeypatch.chdir(tmp_path)
    names = ["events/00.parquet", "events/01.parquet", "events/02.parquet"]
    assert [str(path) for path in find_files("events", "events")] == names
    assert [str(path) for path in find_files("events/0*.parquet", "events")] == names
    assert [str(path) for path in find_files([names[2], Path(names[0]), names[2]], "events")] == [names[2], names[0]]
    assert len(read_files(find_files("events", "events"))) == len(make_events(8))


def test_a_file_that_changes_meanwhile_is_an_error(tmp_path: Path) -> None:
    parts = write_parts(make_events(8), tmp_path / "events", [10])
    found = Partitions.of(parts, "events")
    parquet.write_table(parquet.read_table(parts[1]).slice(1), parts[1])
    with pytest.raises(SourceChangedError, match=r"01\.parquet has \d+ rows, but had \d+ before"):
        found["amount"]


def test_a_type_of_an_empty_column_is_that_of_other_files(tmp_path: Path) -> None:
    for number, values in enumerate([[None, None], [1, 2], [None, 3]]):
        kind = pa.null() if number == 0 else pa.int64()
        parquet.write_table(pa.table({"x": pa.array(values, kind)}), tmp_path / f"{number}.parquet")
    assert read_files(find_files(tmp_path, "events"))["x"].to_pylist() == [None, None, 1, 2, None, 3]
    assert Partitions.of(tmp_path, "events")["x"].to_pylist() == [None, None, 1, 2, None, 3]


def write_pair(folder: Path, first: dict[str, Any], second: dict[str, Any]) -> Path:
    """Two files of other content."""
    folder.mkdir()
    for name, columns in (("a", first), ("b", second)):
        parquet.write_table(pa.table(columns), folder / f"{name}.parquet")
    return folder


@pytest.mark.parametrize("on", [None, "ray"])
@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"k": [1], "x": [1]}, {"k": [1]}, r"b\.parquet has no column 'x', which \S+a\.parquet has. Give files with the same columns"),
        ({"k": [1]}, {"k": [1], "x": [1]}, r"a\.parquet has no column 'x', which \S+b\.parquet has"),
        ({"k": [1], "x": [1]}, {"k": [1], "x": [1.5]}, r"'x' is of the type double in \S+b\.parquet, but of the type int64 in \S+a\.par"),
        ({"k": [1, 2]}, {"k": [1, None]}, r"b\.parquet, row 1: the k is missing; expected one for each row"),
        ({"k": [1, 2]}, {"k": [3, 77]}, r"b\.parquet has the k 77 in row 1, which context does not have"),
        (
            {"k": list(range(30)), "x": [1.0] * 30},
            {"k": list(range(30)), "x": [2.0] * 29 + [np.inf]},
            r"b\.parquet, column 'x', row 29: found inf; expected a finite number",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_file(
    on: str | None, first: dict[str, Any], second: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "run_tasks", in_any_order(np.random.default_rng(0)))
    folder = write_pair(tmp_path / "events", first, second)
    parquet.write_table(pa.table({"k": list(range(40))}), tmp_path / "users.parquet")
    with pytest.raises(BadValueError, match=message):
        prepare(
            folder, key="k", context=tmp_path / "users.parquet", settings=TabularSettings(size="s"), say=lambda *_: None, on=on
        )  # fmt: skip


def test_what_cannot_be_files_of_one_table_is_refused(tmp_path: Path) -> None:
    folder = write_pair(tmp_path / "events", {"x": [1]}, {"x": [2]})
    with pytest.raises(SourceNotFoundError, match="there is no file"):
        find_files([folder / "a.parquet", folder / "c.parquet"], "events")
    with pytest.raises(SourceNotFoundError, match="no file matches"):
        find_files(str(folder / "c*.parquet"), "events")
    (folder / "a.csv").write_text("x\n1\n")
    with pytest.raises(OptionError, match=r"files that end in \.csv and in \.parquet; expected one kind"):
        find_files(folder, "events")
    with pytest.raises(OptionError, match=r"on= needs files that are read by column: \.parquet, \.arrow or \.feather. Convert it"):
        Partitions.of(folder / "a.csv", "events")
    with pytest.raises(
        OptionError, match=r"events is a table in memory, which other processes do not see. Give files, or leave out on="
    ):
        Partitions.of(make_events(3), "events")
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("x\n1\n")
    with pytest.raises(SourceEmptyError, match="texts has no file that ends in"):
        find_files(tmp_path / "texts", "events")
    assert files.place_of(make_events(3), "events", 7) == ("events", 7)


@pytest.fixture(scope="module")
def cluster() -> Any:
    """A head without CPUs, and two nodes with one each."""
    ray = pytest.importorskip("ray", reason="make test-scale installs Ray")
    from ray.cluster_utils import Cluster

    arguments = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": 100 << 20}
    made = Cluster(initialize_head=True, head_node_args=arguments)
    for _ in range(2):
        made.add_node(num_cpus=1, object_store_memory=100 << 20)
    ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_nodes_encode_as_one_process(cluster: Any, tmp_path: Path, rng: np.random.Generator) -> None:
    parts = write_parts(make_mixed(60, rng), tmp_path / "events", [30, 100, 150, 200])
    options: dict[str, Any] = {"key": "user", "settings": TabularSettings(size="s"), "say": lambda *_: None}
    assert_equal(prepare(parts, on="ray", **options), prepare(parts, **options))
    parquet.write_table(pa.table({"user": [1], "x": [np.inf]}), tmp_path / "bad.parquet")
    options["settings"] = TabularSettings(protect=False)
    write_pair(tmp_path / "pair", {"user": [1], "x": [1.0]}, {"user": [2], "x": [np.inf]})
    with pytest.raises(BadValueError, match=r"b\.parquet, column 'x', row 0: found inf"):
        prepare(tmp_path / "pair", on="ray", **options)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_processes_that_are_killed_amid_their_tasks_change_nothing(cluster: Any, tmp_path: Path, rng: np.random.Generator) -> None:
    """Every task kills its own process the first time, after it has read its column."""
    from stoker._ray_tasks import run_tasks

    parts = write_parts(make_mixed(60, rng), tmp_path / "events", [100])
    table = Partitions.of(parts, "events").drop_columns(["user"])
    tasks = tables.ColumnTasks(
        table=table, starts=np.arange(len(table)), encodings={}, protect=True, seed=0, is_sequence=False, bases={}
    )  # fmt: skip
    deaths = tmp_path / "deaths"
    deaths.mkdir()

    def dying(number: int) -> Any:
        found = tasks.fit_and_encode(number)
        if not (deaths / str(number)).exists():
            (deaths / str(number)).touch()
            os.kill(os.getpid(), 9)
        return found

    count = len(table.column_names)
    found = run_tasks("ray", dying, range(count))
    assert len(list(deaths.iterdir())) == count
    for one, other in zip(found, map(tasks.fit_and_encode, range(count)), strict=True):
        assert one[:2] == other[:2]
        assert one[2].tobytes() == other[2].tobytes()
