"""`stoker pack`: every option reaches the pack, and the result is said in one line or in JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from tests.cli.calling import Done, call, stoker_command

from stoker.cli.pack import command
from stoker.errors import OptionError
from stoker.store.pack import api as packs
from stoker.store.pack.api import pack
from stoker.store.versions import open_store

Stoker = Callable[..., Done]


def test_the_result_is_said(stoker: Stoker, prices: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = stoker("pack", prices, out, "--series", "symbol", "--time", "ts")
    assert done == Done(0, f"packed 4 rows into 2 series, 0.0 MB: {out}\n", "")
    store = open_store(out)
    assert list(store.texts("symbol")) == ["AAPL", "MSFT"]
    assert store.digest == pack(prices, tmp_path / "other", series="symbol", time="ts").digest


def test_notes_are_said(stoker: Stoker, prices: Path, tmp_path: Path) -> None:
    done = stoker("pack", prices / "a.csv", tmp_path / "out", "--wide")
    assert "note: column 'symbol' is not numeric and was left out by --wide\n" in done.out


@pytest.mark.parametrize(("decimal", "noted"), [(".", True), (",", False)])
def test_numbers_with_a_decimal_comma_are_noted(stoker: Stoker, tmp_path: Path, decimal: str, noted: bool) -> None:
    (tmp_path / "a.csv").write_text(
        "sales;city\n18,34;Ulm\n1.026,5;Bonn, West\n" if noted else "sales;city\n18,34;Ulm\n26,5;Bonn\n"
    )
    said = stoker("pack", str(tmp_path / "a.csv"), str(tmp_path / "a.stoker"), "--decimal", decimal).out
    assert ("column 'sales' has numbers with a decimal comma, like 18,34, stored as strings: pass --decimal ," in said) == noted
    assert "'city'" not in said


def test_wide_files_of_different_columns(stoker: Stoker, tmp_path: Path) -> None:
    (tmp_path / "csv" / "more").mkdir(parents=True)
    (tmp_path / "csv" / "ETTh1.csv").write_text("date,HUFL,OT\n2016-07-01,5.5,30\n")
    (tmp_path / "csv" / "more" / "weather.csv").write_text("date,T\n2020-01-01,0.5\n2020-01-02,\n")
    out = tmp_path / "out"
    done = stoker("pack", str(tmp_path / "csv" / "**" / "*.csv"), out, "--wide")
    note = "note: column 'date' is not numeric and was left out by --wide\n"
    note += "note: to keep the times of the steps, name their column with --time\n"
    assert done == Done(0, f"packed 3 rows into 3 series, 0.0 MB: {out}\n{note}", "")
    assert list(open_store(out).texts("series")) == ["ETTh1.csv:HUFL", "ETTh1.csv:OT", "more/weather.csv:T"]
    refused = stoker("pack", tmp_path / "csv", tmp_path / "other", "--wide", "--columns", "T,gone")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "--columns names 'gone', but none of the 2 files has it" in refused.err
    with_times = stoker("pack", str(tmp_path / "csv" / "**" / "*.csv"), tmp_path / "third", "--wide", "--time", "date")
    assert "--time" not in with_times.out


def test_the_help_says_when_duplicates_need_sorting(stoker: Stoker) -> None:
    assert "Needs --sort where times are not in order" in " ".join(stoker("pack", "--help").out.split())


def test_json_for_programs(stoker: Stoker, prices: Path, tmp_path: Path) -> None:
    done = stoker("pack", prices, tmp_path / "out", "--series", "symbol", "--json")
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert found["digest"] == open_store(tmp_path / "out").digest
    assert (found["num_series"], found["num_steps"], found["key"]) == (2, 4, "symbol")
    assert [source["name"] for source in found["sources"]] == ["a.csv", "b.csv"]
    assert found["columns"][2] == {
        "name": "close",
        "type": "float64",
        "level": "step",
        "missing": 1,
        "nan": 1,
        "inf": 1,
        "first_nonfinite": [0, 0],
        "categories": None,
    }


def test_several_sources(stoker: Stoker, prices: Path, tmp_path: Path) -> None:
    done = stoker("pack", prices / "b.csv", str(prices / "a*.csv"), tmp_path / "out", "--json")
    assert [source["name"] for source in json.loads(done.out)["sources"]] == ["b.csv", "a.csv"]


GIVEN: dict[str, Any] = {
    "series": "k",
    "time": "t",
    "sort": True,
    "wide": True,
    "columns": "a,b",
    "dtype": "float32",
    "missing": "ffill",
    "duplicates": "last",
    "freq": "1h",
    "regular": False,
    "timezone": "Europe/Berlin",
    "ambiguous": "first",
    "nonexistent": "shift",
    "source_column": "src",
    "delimiter": ";",
    "quote": "'",
    "escape": "\\",
    "header": False,
    "skip": 2,
    "null": ("n/a", "-"),
    "decimal": ",",
    "encoding": "latin-1",
    "time_format": "%d.%m.%Y",
    "memory": "300MB",
    "threads": 3,
    "replace": True,
    "sql": "FROM source WHERE price > 0",
    "on": "ray",
}


def test_every_option_reaches_the_pack(stoker: Stoker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def record(source: Any, path: Any, **options: Any) -> None:
        seen.update(options, source=source, path=path)
        raise OptionError("seen")

    monkeypatch.setattr(packs, "pack", record)
    arguments: list[str] = []
    for name, value in GIVEN.items():
        flag = "--" + name.replace("_", "-")
        if value is False:
            arguments.append(f"--no-{name}")
        elif value is True:
            arguments.append(flag)
        else:
            for one in value if isinstance(value, tuple) else [value]:
                arguments += [flag, str(one)]
    assert stoker("pack", "x", "y", "out", *arguments).err == "stoker: seen\n"
    assert (seen.pop("source"), seen.pop("path")) == (["x", "y"], "out")
    seen.pop("progress")
    assert seen == GIVEN


def test_the_options_are_those_of_the_function() -> None:
    """A new argument of `pack` must be an option too, with the same default."""
    helped = {option.name for option in command.params if isinstance(option, click.Option) and option.expose_value}
    defaults = {**(packs.pack.__kwdefaults__ or {})}
    assert helped - {"as_json", "recipe"} == set(defaults) - {"progress"}
    given = command.make_context("pack", ["a.csv", "out"]).params
    assert {name: given[name] for name in defaults if name != "progress"} == {n: v for n, v in defaults.items() if n != "progress"}


def test_times_of_a_wide_table_on_the_command_line(stoker: Stoker, tmp_path: Path) -> None:
    hours = [22, 23, 0, 1, 2, 2, 3, 3, 6]
    rows = [f"2021-10-{30 + (i > 1)} {hour:02}:00,{i},{i}.5" for i, hour in enumerate(hours)]
    (tmp_path / "a.csv").write_text("\n".join(["date,x,y", *rows]) + "\n")
    out = tmp_path / "out"
    refused = stoker("pack", tmp_path / "a.csv", out, "--wide", "--time", "date")
    assert "Their times are equal: pass --duplicates first" in refused.err
    done = stoker(
        *("pack", tmp_path / "a.csv", out, "--wide", "--time", "date"),
        *("--timezone", "Europe/Berlin", "--duplicates", "last", "--freq", "1h"),
    )
    assert "note: 2 rows had the time of another row of their series: the last was stored\n" in done.out
    assert "note: 4 steps of 1h were missing and were added\n" in done.out
    store = open_store(out)
    assert (store.freq, list(store.schema), store.lengths.tolist()) == ("1h", ["series", "date", "value"], [10, 10])
    plain = stoker("pack", tmp_path / "a.csv", tmp_path / "plain", "--time", "date", "--duplicates", "first")
    assert "note: 1 of 6 steps of the time 'date' are not 1h (the largest: 3h): windows span such gaps" in plain.out


def test_a_tab_can_be_given(stoker: Stoker, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\tz\n1,2\t3\n")
    assert stoker("pack", tmp_path / "a.csv", tmp_path / "out", "--delimiter", "\\t").code == 0
    assert list(open_store(tmp_path / "out").schema) == ["series", "x,y", "z"]


@pytest.mark.parametrize("name", ["\x1b[31mred", "a\nb", "\u202eevil", "bell\x07"])
def test_escapes_in_names_are_shown_and_not_obeyed(stoker: Stoker, tmp_path: Path, name: str) -> None:
    folder = tmp_path / f"in {name}"
    folder.mkdir()
    (folder / f"{name}.csv").write_text(f'"{name}","k{name}"\nx,1\n')
    out = tmp_path / f"out {name}"
    packed = stoker("pack", folder, out, "--wide")
    assert packed.code == 0
    shown = packed.out + stoker("inspect", out).out + stoker("verify", out).out
    failed = stoker("pack", folder, tmp_path / "other", "--series", f"no {name}")
    assert failed.code == 2
    shown += failed.err + stoker("pack", tmp_path / f"gone {name}", "x").err
    assert not set(shown) & set("\x1b\x07\u202e\r")
    assert failed.err.count("\n") == 1
    assert "\\x1b" in shown or "\\n" in shown or "\\u202e" in shown or "\\x07" in shown


def test_nothing_but_the_result_where_there_is_no_terminal(prices: Path, tmp_path: Path) -> None:
    done = call(stoker_command("pack", prices, "out"), tmp_path)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("packed 4 rows into 2 series")


SEVERAL = """
import itertools, sys
from stoker.cli.main import main
codes = []
for ends, arguments in itertools.groupby(sys.argv[1:], ";".__eq__):
    if ends:
        continue
    try:
        main([*arguments])
        codes.append(0)
    except SystemExit as end:
        codes.append(end.code or 0)
print(codes, file=sys.stderr)
"""
"""Several commands in one process, with a ; between them, and the code of each."""


@pytest.mark.parametrize(
    "extra",
    [
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        pytest.param({"PYTHONIOENCODING": "ascii"}, marks=pytest.mark.slow),
    ],
)
def test_a_terminal_that_knows_little_is_not_an_error(tmp_path: Path, extra: dict[str, str]) -> None:
    (tmp_path / "ü.csv").write_text("größe\n1\n2\n", encoding="utf-8")
    words = "pack ü.csv out ; inspect out ; verify out ; inspect out --json ; pack ü.csv out2 --series ß"
    done = call([sys.executable, "-c", SEVERAL, *words.split()], tmp_path, **extra)
    assert done.err.splitlines()[-1:] == ["[0, 0, 0, 0, 2]"], done.err
    assert open_store(tmp_path / "out").digest == pack(tmp_path / "ü.csv", tmp_path / "other").digest


def test_the_result_of_a_statement_is_packed(stoker: Stoker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("e.csv").write_text("user,px\nu1,1\nu1,2\nu2,-3\nu2,4\n")
    Path("u.csv").write_text("user,country\nu1,DE\nu2,AT\n")
    statement = "SELECT user, px AS price, px > 1 AS up, country FROM source JOIN 'u.csv' USING (user) WHERE px > 0"
    assert stoker("pack", "e.csv", "out", "--series", "user", "--sql", statement) == Done(
        0, "packed 3 rows into 2 series, 0.0 MB: out\n", ""
    )
    store = open_store("out")
    assert list(store.schema) == ["user", "price", "up", "country"]
    assert store.column("price").tolist() == [1, 2, 4]
    refused = stoker("pack", "e.csv", "no", "--series", "user", "--sql", "SELECT price FROM source")
    assert refused.err.startswith(
        'stoker: --sql SELECT price FROM source cannot be run: Binder Error: Referenced column "price" not found'
    )


def test_an_invalid_address_is_refused(stoker: Stoker, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("k,x\n1,2\n")
    refused = stoker("pack", tmp_path / "a.csv", tmp_path / "out", "--series", "k", "--on", "dask")
    assert "expected 'ray', or the address of a cluster like 'ray://head:10001'" in refused.err
