"""`stoker explain`, and the names of errors at the end of their lines."""

from __future__ import annotations

import pytest

from stoker import errors
from stoker.cli.explain import KNOWN, explanation
from stoker.cli.main import main


def said(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """What a command printed: on stdout and on stderr."""
    with pytest.raises(SystemExit) if "no" in arguments[-1] else _nothing():
        main(arguments)
    return capsys.readouterr()


class _nothing:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


def test_an_error_is_explained_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("TimeOrderError", "[TimeOrderError]", "stoker.errors.TimeOrderError"):
        out, _ = said(["explain", name], capsys)
        assert out.startswith("TimeOrderError: Times that do not increase")
        assert "To do: Pass `sort=True`" in out


def test_without_a_name_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = said(["explain"], capsys)
    assert [line.split()[0] for line in out.splitlines()] == list(KNOWN)
    assert errors.StokerError.__name__ in KNOWN


def test_every_error_says_what_to_do() -> None:
    assert [name for name in KNOWN if "To do: " not in explanation(name)] == ["StokerError"]


def test_a_name_that_is_not_known_gets_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    _, err = said(["explain", "TimeOderErrorno"], capsys)
    assert err == "stoker: there is no error 'TimeOderErrorno'; did you mean TimeOrderError?\n"
    _, err = said(["explain", "nothing"], capsys)
    assert err.endswith("Run `stoker explain` for a list.\n")
