"""The command line as a whole: one line for an error, a traceback only on request, and exit codes that programs can use."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.calling import Done, call, environment, stoker_command

import stoker as package
from stoker.cli import main as cli
from stoker.errors import SourceNotFoundError, StokerError

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
        (["verify", "."], "stoker: . is not a store: it has no manifest.json.\n"),
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
@pytest.mark.parametrize("command", ["pack", "verify"])
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
    ("arguments", "line", "expected"),
    [
        (["pack", "a", "b"], "times do not rise. Pass sort=True.", "times do not rise. Pass --sort."),
        (["pack", "a", "b"], "Pass encoding='latin-1' or columns=.", "Pass --encoding latin-1 or --columns."),
        (["pack", "a", "b"], "Pass dtype={'a': 'text'} or columns=[...].", "Pass --dtype a=text or --columns A,B."),
        (["pack", "a", "b"], "x/sort=True.csv and subset=True stay", "x/sort=True.csv and subset=True stay"),
        (
            ["train", "x.yaml"],
            "pass observed=True to the feed: so, or guard='skip'.",
            "pass --set observed=true: so, or --set guard=skip.",
        ),
        (
            ["predict", "r"],
            "Pass duplicates='first' (or last), or sql=None.",
            "Pass --pack duplicates=first (or last), or --pack sql=none.",
        ),
        ([], "Pass sort=True.", "Pass sort=True."),
    ],
)
def test_messages_name_the_options_of_the_command(arguments: list[str], line: str, expected: str) -> None:
    from stoker.cli.main import in_flags

    assert in_flags(line, arguments) == expected
