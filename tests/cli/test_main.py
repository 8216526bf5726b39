"""The command line as a whole: one line for an error, a traceback only on request, and exit codes that programs can use."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.calling import Done, call, check_end, environment, stoker_command
from tests.cli.walking import COMMANDS, options_of

import stoker as package
from stoker import extend
from stoker.cli import main as cli
from stoker.errors import OptionError, SourceNotFoundError, StokerError

Stoker = Callable[..., Done]


def test_help_names_all_commands(stoker: Stoker) -> None:
    done = stoker("--help")
    assert done.code == 0
    for name in cli.COMMANDS:
        assert f"  {name} " in done.out
        assert stoker(name, "--help").code == 0
    assert stoker("-h").out == done.out


def test_version(stoker: Stoker) -> None:
    assert stoker("--version").out == f"stoker, version {package.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["pack", "nothing.csv", "out"],
            "stoker: nothing.csv does not exist. Give a file, a folder, or a pattern like 'data/*.csv' (in quotes).\n",
        ),
        (["pack", "a.csv", "out", "--memory", "much"], "stoker: 'much' is not a size; write it like 256MB or 2GB.\n"),
        (["pack", "a.csv", "out", "--series", "k"], "stoker: --series names 'k', but a.csv has the columns x.\n"),
        (["pack", "a.csv", "a.csv"], "stoker: a.csv is a file, but a store is a folder. Choose another name.\n"),
        (["inspect", "gone"], "stoker: gone does not exist. Make a store with `stoker pack SOURCE gone`.\n"),
        (["inspect", ".", "--verify"], "stoker: . is not a store: it has no manifest.json.\n"),
    ],
)
def test_an_error_is_one_line_and_code_2(
    stoker: Stoker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("x\n1\n")
    assert stoker(*arguments) == Done(2, "", line)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv"]


@pytest.mark.parametrize("arguments", [["--debug", "pack", "gone.csv", "out"], ["pack", "gone.csv", "out", "--debug"]])
def test_debug_shows_the_traceback(stoker: Stoker, tmp_path: Path, arguments: list[str]) -> None:
    with pytest.raises(SourceNotFoundError):
        stoker(*arguments)
    done = call(stoker_command(*arguments), tmp_path)
    assert done.code not in (0, 2)
    assert "Traceback (most recent call last)" in done.err
    assert "SourceNotFoundError" in done.err


def test_a_bug_is_not_hidden(stoker: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(*arguments: object, **options: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(cli.cli, "main", break_down)
    with pytest.raises(ZeroDivisionError):
        stoker("pack", "a.csv", "out")


@pytest.mark.parametrize(
    ("error", "code"), [(KeyboardInterrupt(), 130), (cli.Terminated(), 143), (cli.Terminated(signal.SIGHUP), 129)]
)
@pytest.mark.parametrize("command", ["pack", "inspect"])
def test_a_stop_is_said(stoker: Stoker, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, command: str) -> None:
    def stop(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(cli.cli, "main", stop)
    resumes = " to resume" if command == "pack" else ""
    assert stoker(command, "x") == Done(code, "", f"stoker: stopped. Run the same command again{resumes}.\n")


def test_escapes_in_an_error_are_shown(stoker: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise StokerError("bad \x1b]0;title\x07 name\nwith a second line \u202e and \u2028")

    monkeypatch.setattr(cli.cli, "main", fail)
    done = stoker("pack", "x", "y")
    assert done.err == "stoker: bad \\x1b]0;title\\x07 name\\nwith a second line \\u202e and \\u2028\n"


def test_a_reader_that_leaves_early_is_not_an_error(prices: Path, tmp_path: Path) -> None:
    assert call(stoker_command("pack", prices, "out"), tmp_path).code == 0
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        stoker_command("inspect", "out"), cwd=tmp_path, env=environment(), stdout=write_end, stderr=subprocess.PIPE, check=False
    )
    os.close(write_end)
    assert done.returncode in (0, 1)
    assert done.stderr == b""


@pytest.mark.parametrize(
    ("command", "parameter", "line", "expected"),
    [
        ("pack", "sort", "times do not rise. Pass sort=True.", "times do not rise. Pass --sort."),
        ("pack", "encoding", "Pass encoding='latin-1' or columns=.", "Pass --encoding latin-1 or --columns."),
        ("pack", "series", "series names 'k', but a.csv has x.", "--series names 'k', but a.csv has x."),
        ("pack", "series", "x/sort=True.csv stays, and resort=True", "x/sort=True.csv stays, and resort=True"),
        ("train", "guard", "so, or guard='skip'.", "so, or --set guard=skip."),
        ("train", "overrides", "overrides: data.batch_size is 0.", "--set: data.batch_size is 0."),
        ("predict", "sql", "or sql=None.", "or --pack sql=none."),
        ("inspect", "sort", "Pass sort=True.", "Pass sort=True."),
        ("pack", "freq", "Pass time=Time('ts', freq='1h').", "Pass --time ts, --freq 1h."),
        ("pack", "null", "Pass Csv(null='nan(5)').", "Pass --null 'nan(5)'."),
        ("pack", "dtype", "Pass dtype={'x': 'category'}.", "Pass --dtype x=category."),
        ("pack", "columns", "Pass columns=[...].", "Pass --columns A,B."),
        ("pack", None, "Pass sort=True.", "Pass sort=True."),
    ],
)
def test_an_error_names_the_option_of_its_parameter(command: str, parameter: str | None, line: str, expected: str) -> None:
    assert cli.in_flags(OptionError(line, parameter=parameter), COMMANDS[command]) == expected


def test_without_a_command_the_first_steps_are_shown(stoker: Stoker) -> None:
    done = stoker()
    assert (done.code, done.err) == (0, "")
    assert [line.split()[:2] for line in done.out.splitlines() if line.startswith("  ")] == [
        ["stoker", "diagnose"], ["stoker", "pack"], ["stoker", "train"]
    ]  # fmt: skip


CORE = "diagnose compare watch gate audit pack append inspect train predict export tune runs live".split()
MOST_OPTIONS = 200


def test_the_commands_of_the_core_are_few_and_know_no_recipe() -> None:
    assert list(cli.COMMANDS) == CORE
    recipes = set(extend.registered("recipes"))
    assert recipes >= {"icecube", "tabular", "tfa", "time-moe", "timehut"}
    source = Path(package.__file__).parent
    words = re.compile("|".join(sorted(name.replace("-", ".") for name in recipes)), re.IGNORECASE)
    imports = re.compile(r"^\s*(from|import) stoker_recipes|[\"']stoker_recipes", re.MULTILINE)
    assert [path for path in source.rglob("*.py") if imports.search(path.read_text())] == [], "recipes are found by entry points"
    assert not [name for name in cli.COMMANDS if words.search(name)]


def test_the_options_of_all_commands_are_few() -> None:
    """Those of the core and of the recipes together; -q, -v, --debug and --json mean the same everywhere, and are not counted."""
    assert sum("--json" not in option.opts for command in COMMANDS.values() for option in options_of(command)) <= MOST_OPTIONS


def exit_codes_of(text: str, command: str) -> set[str]:
    """The codes with which the table of a page says that a command ends."""
    rows = re.findall(r"^\| ([\d, ]+) \| (.*) \|$", text, re.MULTILINE)
    return {code for codes, meaning in rows for code in codes.split(", ") if f"`{command}" in meaning or code in ("0", "2")}


def test_the_table_of_exit_codes_has_those_of_every_command() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    told = {}
    for path, command in COMMANDS.items():
        _, found, sentence = (command.help or "").partition("Exit code")
        if found:
            codes = re.findall(r"(?:^|[,:]) ?(\d+): ", f"{sentence.partition('.')[0]}: ".replace("\n", " "))
            told[path] = set(codes)
    assert set(told) == {"diagnose", "compare", "gate", "audit"}
    assert told["compare"] == {"0", "1", "2", "3", "4"}
    assert [path for path, codes in told.items() if not codes <= exit_codes_of(page, path)] == []
    assert not told["compare"] <= exit_codes_of(page.replace("| 4 |", "| 5 |"), "compare"), "the control"


def test_an_option_has_one_name() -> None:
    """Besides --no-NAME; a letter alone is known from other programs: -m, -q, -v."""
    several = {path: option.opts for path, command in COMMANDS.items() for option in options_of(command) if len(option.opts) > 1}
    assert several == {}


DOCUMENTS = [*Path(__file__).parents[2].glob("docs/**/*.md"), *Path(__file__).parents[2].glob("**/README.md")]
ANOTHER_PACKAGE = {"waves", "--nproc-per-node", "--help"}
"""The command of the example of docs/extending.md, an option of a launcher, and one that click adds."""


def unknown_in(text: str) -> list[str]:
    """Commands and options of `stoker` that a document shows and that do not exist."""
    unknown = []
    for words in re.findall(r"^(?:\$ )?stoker ([a-z][^\n`|#]*)", text, re.MULTILINE):
        path = max((known for known in COMMANDS if f"{words} ".startswith(f"{known} ")), key=len, default=None)
        if path is None:
            unknown.append(words.split()[0])
            continue
        options = {flag for name in (path, f"{path} icecube", f"{path} tfa") if name in COMMANDS for flag in flags_of(name)}
        own = re.split(r"\s-m\s|\.py\b|\s--\s", words)[0] if path in ("diagnose", "watch", "gate", "audit", "compare") else words
        unknown += [word for word in re.findall(r"(?<=\s)--[a-z-]+", own) if word not in options]
    return [name for name in unknown if name not in ANOTHER_PACKAGE]


def flags_of(path: str) -> set[str]:
    """All flags of a command."""
    return {flag for param in COMMANDS[path].params for flag in (*param.opts, *param.secondary_opts)}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_documents_show_commands_and_options_that_exist(document: Path) -> None:
    if document.name in ("journal.md", "cli.md", "extending.md"):
        return  # what was; generated; the commands of another package
    assert unknown_in(document.read_text()) == []


def test_negative_control_commands_that_do_not_exist_are_recognised() -> None:
    assert unknown_in("stoker verify a.stoker\nstoker pack a.csv b --sort --replace\n") == ["verify", "--replace"]
    assert unknown_in("stoker train timehut --data a --epochs 3\nstoker diagnose --try train.py --epochs 3\n") == ["--epochs"]


@pytest.mark.parametrize(
    ("words", "done", "complete"),
    [
        (["pack", "a"], Done(0, "packed\nnext: stoker inspect a\n", ""), True),
        (["pack", "a"], Done(0, "packed\n", ""), False),
        (["pack", "a"], Done(0, "next: stoker inspect a\n" + "more\n" * 4, ""), False),
        (["pack", "a"], Done(2, "", "stoker: error\n"), True),
        (["pack", "-q", "a"], Done(0, "packed\n", ""), True),
        (["pack", "--json", "a"], Done(0, '{"a": 1}\n', "note\n"), True),
        (["pack", "--json", "a"], Done(0, '{"a": 1}\nnext: x\n', ""), False),
        (["pack", "--json", "a"], Done(0, '{"a": 1}\n{"b": 1}\n', ""), False),
        (["pack", "--json", "a"], Done(0, '{"a": NaN}', ""), False),
        (["pack", "--json", "a"], Done(0, "", '{"a": 1}'), False),
    ],
)
def test_the_check_of_the_end_of_all_commands_sees_what_it_is_for(words: list[str], done: Done, complete: bool) -> None:
    with contextlib.nullcontext() if complete else pytest.raises((AssertionError, ValueError)):
        check_end(words, done)


def test_each_command_is_called_by_a_test_that_checks_its_end() -> None:
    """The fixture `stoker` checks each call, but only of commands that tests call with it: without --json, and with it."""
    calls = "\n".join(path.read_text() for path in Path(__file__).parents[1].rglob("test_*.py"))
    called = re.findall(r'[(\[]\s*((?:"[\w-]+",? ?\s*)+)', calls)
    words = {" ".join(re.findall(r'"([\w-]+)"', call)) for call in called}
    by_run = (
        "train",
        "export",
        "pack",
        "tune batch",
        "tune search",
    )  # tests name the recipe by a configuration, or by data or a run
    versions = {f"{path} {name}" for path in by_run for name in extend.registered("recipes")}
    assert [path for path in COMMANDS if path not in versions and not any(call.startswith(path) for call in words)] == []
