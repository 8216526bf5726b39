"""The exceptions: one tree, each also the built-in that fits, with a message that stays short and survives a process border."""

from __future__ import annotations

import ast
import builtins
import errno
import pickle
import re
from pathlib import Path

import pytest

import stoker
from stoker import errors
from stoker.errors import (
    MAX_MESSAGE,
    DiskError,
    OptionError,
    SourceInvalidError,
    StokerError,
    StoreNotFoundError,
    shorten,
)

KINDS = [var for var in vars(errors).values() if isinstance(var, type) and issubclass(var, StokerError)]
BASES = {StokerError, errors.SourceError, errors.StoreError}  # of several kinds, so of no built-in


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_is_named_explained_and_also_a_built_in(kind: type[StokerError]) -> None:
    assert kind.__name__.endswith("Error")
    assert kind is StokerError or "To do:" in (kind.__doc__ or ""), "docs/errors.md has it"
    plain = [one for one in kind.__mro__ if vars(builtins).get(one.__name__) is one]
    assert (plain[0] is Exception) == (kind in BASES)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_of_another_process_arrives_with_its_fields(kind: type[StokerError]) -> None:
    text = "x.csv: row 3 of 'close' holds 'n/a'."
    args = (errno.ENOSPC, text) if issubclass(kind, DiskError) else (text,)
    error = kind(*args, parameter="null", path=Path("x.csv"), row=3, column="close")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.args, str(copy)) == (kind, error.args, str(error))
    assert (copy.parameter, copy.path, copy.row, copy.column) == ("null", "x.csv", 3, "close")


@pytest.mark.parametrize("kind", KINDS)
def test_the_fields_of_an_error_are_none_where_they_do_not_apply(kind: type[StokerError]) -> None:
    error = kind("x")
    assert (error.parameter, error.path, error.row, error.column) == (None, None, None, None)


@pytest.mark.promise("P6")
@pytest.mark.parametrize("kind", [OptionError, SourceInvalidError, StoreNotFoundError, DiskError, StokerError])
def test_messages_of_any_error_are_shortened_in_their_middle(kind: type[StokerError]) -> None:
    error = kind("a.csv holds " + "x" * 1_000_000 + " in row 7. Fix the file.")
    assert len(str(error)) <= MAX_MESSAGE
    assert str(error).startswith("a.csv holds xxx")
    assert str(error).endswith("in row 7. Fix the file.")
    assert "[…999,076 characters left out…]" in str(error)
    assert str(kind("short")) == "short"


def test_shortening_counts_what_is_left_out() -> None:
    assert shorten("abc", 100) == "abc"
    found = shorten("a" * 500 + "b" * 500, 100)
    left_out = int(found.partition("[…")[2].partition(" ")[0])
    assert found.count("a") + found.count("b") - "characters left out".count("a") + left_out == 1000


def advice_without_argument(source: str) -> list[int]:
    """The lines of errors that advise a value of `stoker.pack`, such as Csv(encoding=), but do not have the field `parameter`."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    names = {kind.__name__ for kind in KINDS} | {"BadError"}
    raised = [call for call in calls if (name := ast.unparse(call.func)) in names or name.endswith(".invalid")]
    advises = re.compile(r"\b(?:Csv|Files|Resources|Time)\(\w+=")
    return [
        call.lineno
        for call in raised
        if advises.search(ast.unparse(call)) and not {"parameter", None} & {word.arg for word in call.keywords}
    ]


def test_advice_in_arguments_can_be_shown_as_flags() -> None:
    """The command line shows `Csv(encoding=)` as `--encoding` for errors with the field `parameter` alone."""
    sources = Path(stoker.__file__).parent.rglob("*.py")
    assert [(path.name, lines) for path in sources if (lines := advice_without_argument(path.read_text()))] == []
    assert advice_without_argument('raise BadError(f"{path} is bad. Pass Csv(encoding=)", path=path)') == [1], "the control"
    assert advice_without_argument('raise BadError("Pass Csv(encoding=)", parameter="encoding")') == []
