"""sql=: a statement over the sources is packed like a table with its result, and one that may not run is refused in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import stoker
from stoker import Store, append, pack
from stoker.errors import OptionError, StokerError, TimeOrderError
from stoker.store.pack import sql

JOIN = "SELECT symbol, day, close / open - 1 AS ret, country FROM source JOIN 'meta.csv' USING (symbol) WHERE close > 0"


@pytest.fixture
def prices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Prices of three symbols in two files, and a file of facts beside them, in the current folder."""
    monkeypatch.chdir(tmp_path)
    for file in (1, 2):
        rows = [f"{symbol},{10 * file + day},{day + 1}.0,{day + file}.5" for day in range(3) for symbol in "ABC"]
        Path(f"p{file}.csv").write_text("\n".join(["symbol,day,open,close", *rows]) + "\n")
    Path("meta.csv").write_text("symbol,country\nA,DE\nB,FR\nC,DE\n")
    return tmp_path


def table_of(path: str) -> pa.Table:
    """The rows of a store, one per step."""
    store = stoker.open(path)
    columns = {name: [series[name] for series in store] for name in store.schema}
    lengths = store.lengths
    key = np.repeat(columns.pop("symbol"), lengths)
    return pa.table({"symbol": key, **{name: np.concatenate(values) for name, values in columns.items()}})


@pytest.mark.promise("P25")
def test_a_statement_is_packed_like_a_table_with_its_result(prices: Path) -> None:
    store = pack("p*.csv", "a", series="symbol", time="day", sql=JOIN)
    connection = duckdb.connect()
    connection.execute("CREATE VIEW source AS FROM read_csv(['p1.csv', 'p2.csv'])")
    expected = connection.sql(JOIN + " ORDER BY symbol, day").to_arrow_table()
    found = table_of("a")
    assert found["symbol"].to_pylist() == expected["symbol"].to_pylist()
    assert found["ret"].to_pylist() == expected["ret"].to_pylist()
    assert [store.texts("country")[code] for code in found["country"].to_pylist()] == expected["country"].to_pylist()
    assert store.manifest.sql == JOIN
    assert [(one.name, one.num_rows, one.xxh3 is not None) for one in store.manifest.sources] == [
        ("p1.csv", 9, True),
        ("p2.csv", 9, True),
    ]


@pytest.mark.promise("P25")
@pytest.mark.parametrize("options", [{"threads": 1}, {"threads": 4}, {"memory": "192MB"}])
def test_threads_and_memory_do_not_change_the_bytes(prices: Path, options: dict[str, Any]) -> None:
    usual = pack("p*.csv", "a", series="symbol", sql=JOIN)
    assert pack("p*.csv", "b", series="symbol", sql=JOIN, resources=stoker.Resources(**options)).digest == usual.digest


@pytest.mark.promise("P25")
def test_a_join_streams_its_left_table_in_order(prices: Path) -> None:
    """The optimizer of DuckDB would hold the source, whose size it does not know, and give its rows in reverse order."""
    table = pa.table({"k": np.arange(300_000) % 3, "day": np.arange(300_000)})
    facts = pa.table({"k": [0, 1, 2], "fact": [1.5, 2.5, 3.5]})
    pq.write_table(facts, "facts.parquet")
    store = pack(table, "a", series="k", time="day", sql="FROM source JOIN 'facts.parquet' USING (k)")
    assert store.column("fact")[store.offsets[:-1]].tolist() == [1.5, 2.5, 3.5]


@pytest.mark.promise("P25", control=True)
def test_negative_control_with_the_optimizer_of_joins_rows_come_in_another_order(
    prices: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = sql._config
    monkeypatch.setattr(sql, "_config", lambda *given: {**real(*given), "disabled_optimizers": ""})
    with pytest.raises(TimeOrderError):
        pack("p*.csv", "a", series="symbol", time="day", sql=JOIN)


def test_text_whose_types_were_inferred_wrongly_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("k,x\n" + "a,1\n" * 300_000 + "a,2.5\nb,\n")
    store = pack(tmp_path / "a.csv", tmp_path / "out", series="k", sql="SELECT k, 2 * x AS y FROM source")
    assert store.column("y")[[0, -2]].tolist() == [2.0, 5.0]
    assert np.isnan(store.column("y")[-1])
    assert store.num_steps == 300_002


def test_integers_with_gaps_and_types_of_the_result(tmp_path: Path) -> None:
    given = {"k": [1, 1, 2], "x": [1, None, 3], "id": ["007", "7", "x"]}
    store = pack(
        given, tmp_path / "a", series="k", sql="SELECT k, x, sum(x) OVER () AS total, id FROM source", dtype={"total": "int32"}
    )
    assert {name: column.label for name, column in store.schema.items()} == {
        "k": "int64", "x": "float64", "total": "int32", "id": "category",
    }  # fmt: skip
    (tmp_path / "a.csv").write_text("k,id\n1,007\n1,7\n")
    store = pack(tmp_path / "a.csv", tmp_path / "b", series="k", sql="FROM source", dtype={"id": "category"})
    assert list(store.texts("id")) == ["007", "7"]
    store = pack(tmp_path / "a.csv", tmp_path / "c", series="k", sql="SELECT k, length(id) AS n FROM source", dtype={"id": "text"})
    assert store.column("n").tolist() == [3, 1]


def test_lists_of_a_group_are_whole_series_with_facts(prices: Path) -> None:
    grouped = (
        "SELECT symbol, any_value(country) AS country, list(day ORDER BY day) AS day, list(close ORDER BY day) AS close "
        "FROM source JOIN 'meta.csv' USING (symbol) GROUP BY symbol"
    )
    store = pack("p*.csv", "a", series="symbol", time="day", sql=grouped, dtype={"country": "category"})
    assert store.where("country == 'DE' and num_steps == 6").tolist() == [0, 2]
    assert store.column("close").tolist() == pack("p*.csv", "b", series="symbol").column("close").tolist()


def test_the_other_options_apply_to_the_result(prices: Path) -> None:
    wide = "SELECT day, avg(open) AS open, avg(close) AS close FROM source GROUP BY day"
    store = pack("p*.csv", "a", wide=True, time="day", sort=True, sql=wide)
    assert list(store.texts("series")) == ["open", "close"]
    named = pack(
        stoker.Files("p*.csv", name_column="file"),
        "b",
        series="symbol",
        sql="SELECT symbol, close, file FROM source",
        columns=["close", "file"],
    )
    assert list(named.schema) == ["symbol", "close", "file"]
    assert list(named.texts("file")) == ["p1.csv", "p2.csv"]


@pytest.mark.promise("P25")
@pytest.mark.parametrize(
    ("statement", "text"),
    [
        (
            "SELECT nope FROM source",
            r"cannot be run: Binder Error: .*\"nope\" not found .* 'source' has the columns symbol, day, open, close\.",
        ),
        ("SELECT * FROM sources", r"cannot be run: Catalog Error: Table with name sources does not exist"),
        ("SELEC", r"sql='SELEC' cannot be run: Parser Error"),
        ("SELECT 1; SELECT 2", r"expected one SELECT statement over the table 'source'"),
        ("", r"expected a statement like"),
        ("COPY source TO 'stolen.csv'", r"expected one SELECT statement"),
        ("INSTALL httpfs", r"expected one SELECT statement"),
        ("SET threads = 8", r"expected one SELECT statement"),
        ("CREATE TABLE t AS FROM source", r"expected one SELECT statement"),
        (
            "FROM read_text('/etc/hostname')",
            r"Permission Error: .* A statement may read files in the current folder and in those of the sources",
        ),
        ("FROM 'https://example.com/a.csv'", r"Permission Error"),
        ("SELECT symbol, CAST(symbol AS INT) AS x FROM source", r"Conversion Error: Could not convert string 'A' to INT32"),
    ],
)
def test_what_may_not_run_is_refused_in_one_line(prices: Path, statement: str, text: str) -> None:
    before = sorted(Path().iterdir())
    with pytest.raises(OptionError, match=text) as caught:
        pack("p*.csv", "a", series="symbol", sql=statement)
    assert "\n" not in str(caught.value)
    assert sorted(Path().iterdir()) == before


@pytest.mark.promise("P25")
def test_a_name_in_a_statement_is_not_a_variable_of_python(prices: Path) -> None:
    secret = pa.table({"symbol": ["A"], "x": [1.0]})
    assert secret.num_rows == 1
    with pytest.raises(OptionError, match="secret does not exist"):
        pack("p*.csv", "a", series="symbol", sql="FROM secret")


def test_errors_of_the_readers_and_of_the_rows_keep_their_names(prices: Path) -> None:
    Path("p2.csv").write_text("symbol,day,open,close\nA,9,x,1.0\n")
    with pytest.raises(StokerError, match=r"column 'open'"):
        pack("p*.csv", "a", series="symbol", sql="FROM source")
    with pytest.raises(StokerError, match=r"time 'day' of symbol 'A' does not increase: 11 in row \d+ of the result of sql="):
        pack("p1.csv", "b", series="symbol", time="day", sql="FROM source ORDER BY day DESC")


@pytest.mark.promise("P25")
def test_append_applies_the_statement_of_the_store(prices: Path) -> None:
    pack("p1.csv", "a", series="symbol", time="day", sql=JOIN)
    store = append("a", "p2.csv")
    assert table_of("a").equals(table_of(str(pack("p*.csv", "b", series="symbol", time="day", sql=JOIN).path)))
    ready = {"symbol": ["A"], "day": [99], "ret": [0.5], "country": ["DE"]}
    with pytest.raises(OptionError, match=r"Ambiguous .* a was packed with this statement: pass sql=None"):
        append("a", ready)
    store = append("a", ready, sql=None)
    assert store[0]["ret"][-1] == 0.5
    assert Store.save(store, prices / "copy").manifest.sql == JOIN  # type: ignore[union-attr]


MEMORY = """
import resource, sys
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
import stoker
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
stoker.pack("big.parquet", "out", series="k", resources=stoker.Resources(memory="192MB"), sql="SELECT k, x + 1 AS y, x FROM source")
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


@pytest.mark.promise("P25")
def test_a_result_larger_than_the_memory_is_streamed(tmp_path: Path) -> None:
    """64 bytes a row, 4 million rows: a quarter of a gigabyte."""
    with pq.ParquetWriter(tmp_path / "big.parquet", pa.schema([("k", pa.int64()), ("x", pa.float64())])) as writer:
        for part in range(40):
            rows = np.arange(200_000) + part * 200_000
            writer.write_table(pa.table({"k": rows // 1000, "x": rows * 0.5}))
    done = subprocess.run([sys.executable, "-c", MEMORY], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 192
    assert stoker.open(tmp_path / "out").num_steps == 8_000_000
