"""`stoker pack`: every option reaches the pack, and the result is said in one line or in JSON."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.calling import Done, call

from stoker.cli import command as base
from stoker.cli.pack import command as pack_command
from stoker.errors import OptionError
from stoker.store.formats.csv import Csv
from stoker.store.opening import open_store
from stoker.store.pack.api import pack
from stoker.store.pack.options import Resources, Time

Stoker = Callable[..., Done]


def test_the_result_is_said(stoker: Stoker, prices: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = stoker("pack", prices, out, "--series", "symbol", "--time", "ts")
    assert done == Done(0, f"packed 4 rows into 2 series, 0.0 MB: {out}\nnext: stoker inspect {out}\n", "")
    store = open_store(out)
    assert list(store.texts("symbol")) == ["AAPL", "MSFT"]
    assert store.digest == pack(prices, tmp_path / "other", series="symbol", time="ts").digest


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
        "inf": 1,
        "first_nonfinite": [0, 0],
        "categories": None,
    }


def test_times_of_a_wide_table_on_the_command_line(stoker: Stoker, tmp_path: Path) -> None:
    hours = [22, 23, 0, 1, 2, 2, 3, 3, 6]
    rows = [f"2021-10-{30 + (i > 1)} {hour:02}:00,{i},{i}.5" for i, hour in enumerate(hours)]
    (tmp_path / "a.csv").write_text("\n".join(["date,x,y", *rows]) + "\n")
    out = tmp_path / "out"
    refused = stoker("pack", tmp_path / "a.csv", out, "--wide", "--time", "date")
    assert "does not increase" in refused.err
    assert "--timezone" in refused.err
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


@pytest.mark.parametrize("name", ["\x1b[31mred", "a\nb", "\u202eevil", "bell\x07"])
def test_escapes_in_names_are_shown_and_not_obeyed(stoker: Stoker, tmp_path: Path, name: str) -> None:
    folder = tmp_path / f"in {name}"
    folder.mkdir()
    (folder / f"{name}.csv").write_text(f'"{name}","k{name}"\nx,1\n')
    out = tmp_path / f"out {name}"
    packed = stoker("pack", folder, out, "--wide")
    assert packed.code == 0
    shown = packed.out + stoker("inspect", out).out + stoker("inspect", out, "--verify").out
    failed = stoker("pack", folder, tmp_path / "other", "--series", f"no {name}")
    assert failed.code == 2
    shown += failed.err + stoker("pack", tmp_path / f"gone {name}", "x").err
    assert not set(shown) & set("\x1b\x07\u202e\r")
    assert failed.err.count("\n") == 1
    assert "\\x1b" in shown or "\\n" in shown or "\\u202e" in shown or "\\x07" in shown


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
    words = "pack ü.csv out ; inspect out ; inspect out --verify ; inspect out --json ; pack ü.csv out2 --series ß"
    done = call([sys.executable, "-c", SEVERAL, *words.split()], tmp_path, **extra)
    assert done.err.splitlines()[-1:] == ["[0, 0, 0, 0, 2]"], done.err
    assert open_store(tmp_path / "out").digest == pack(tmp_path / "ü.csv", tmp_path / "other").digest


def test_the_result_of_a_statement_is_packed(stoker: Stoker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("e.csv").write_text("user,px\nu1,1\nu1,2\nu2,-3\nu2,4\n")
    Path("u.csv").write_text("user,country\nu1,DE\nu2,AT\n")
    statement = "SELECT user, px AS price, px > 1 AS up, country FROM source JOIN 'u.csv' USING (user) WHERE px > 0"
    assert stoker("pack", "e.csv", "out", "--series", "user", "--sql", statement) == Done(
        0, "packed 3 rows into 2 series, 0.0 MB: out\nnext: stoker inspect out\n", ""
    )
    store = open_store("out")
    assert list(store.schema) == ["user", "price", "up", "country"]
    assert store.column("price").tolist() == [1, 2, 4]
    refused = stoker("pack", "e.csv", "no", "--series", "user", "--sql", "SELECT price FROM source")
    assert "SELECT price FROM source" in refused.err
    assert 'cannot be run: Binder Error: Referenced column "price" not found' in refused.err


OF_THE_COMMAND = ("source", "store", "as_json", "recipe", "name_column")


def test_every_flag_is_an_argument_or_a_field_of_one_with_the_same_default() -> None:
    defaults = dict(pack.__kwdefaults__)
    for value in (Csv(), Resources(), Time("t")):
        defaults |= {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    unset = pack_command.make_context("pack", ["a.csv", "out"]).params
    flags = {name: value for name, value in unset.items() if name not in OF_THE_COMMAND}
    assert {name: defaults[name] for name in flags} == flags
    given = base.pack_arguments(flags | {"time": "ts", "freq": "1h", "delimiter": ";", "memory": "2GB"})
    assert given["time"] == Time("ts", freq="1h")
    assert given["csv"] == Csv(delimiter=";")
    assert given["resources"] == Resources(memory="2GB")


@pytest.mark.parametrize("flag", [{"freq": "1h"}, {"duplicates": "last"}, {"timezone": "UTC"}, {"ambiguous": "first"}])
def test_a_rule_for_times_needs_the_time(flag: dict[str, str]) -> None:
    with pytest.raises(OptionError) as error:
        base.pack_arguments(flag)
    assert error.value.parameter == next(iter(flag))


def test_an_unknown_argument_is_named_and_not_a_traceback() -> None:
    with pytest.raises(OptionError) as error:
        base.pack_arguments({"evil": 1})
    assert error.value.parameter == "evil"


def test_the_advice_on_several_words_can_be_typed_as_it_is(stoker: Stoker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("x,y\n" + "1.5,2\n" * 9 + "-,n/k\n3,not known\n")
    error = stoker("pack", "a.csv", "a.stoker").err
    assert "--null - --null n/k --null 'not known' if they mean missing" in error
    assert "--dtype x=category,y=category to keep all as words" in error
    assert stoker("pack", "a.csv", "b.stoker", "--dtype", "x=category,y=category").code == 0
    assert stoker("pack", "a.csv", "a.stoker", "--null", "-", "--null", "n/k", "--null", "not known").code == 0
    assert open_store("a.stoker").schema["y"].missing == 2
    assert base.read_pack_options(["null=-", "null=n/k", "null=x"]) == {"null": ("-", "n/k", "x")}
