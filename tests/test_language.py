"""Documents, help texts and messages use the standard terms of the field; tools/language.py lists the phrases to avoid."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from tools import language

from stoker.cli.main import COMMANDS, cli


@pytest.mark.parametrize("document", language.documents(), ids=lambda path: str(path.relative_to(language.ROOT)))
def test_documents_use_standard_terms(document: Path) -> None:
    assert list(language.find(language.prose(document.read_text()))) == []


def texts_of(command: click.Command) -> Iterator[str]:
    yield command.help or ""
    yield command.short_help or ""
    yield from (option.help or "" for option in command.params if isinstance(option, click.Option))


def test_the_list_of_commands_uses_standard_terms() -> None:
    assert [found for text in [*COMMANDS.values(), cli.help or ""] for found in language.find(text)] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_help_uses_standard_terms(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert [found for text in texts_of(command) for found in language.find(text)] == []


def test_messages_and_docstrings_use_standard_terms() -> None:
    assert list(language.in_source()) == []


def test_names_of_tests_use_standard_terms() -> None:
    assert list(language.in_test_names()) == []


@pytest.mark.parametrize(
    ("text", "phrases"),
    [
        ("what holds a training back", ["holds a training back", "a training"]),
        ("The training run resumes at step 3.", []),
        ("a training step of 2 ms", []),
        ("the run goes on, and a NaN is no number", ["goes on", "no number", "is no number"]),
        ("12 bytes a batch, 3 ms\na step", ["bytes a batch", "ms a step"]),
        ("there is no loader; a batch is no longer valid", []),
        ("a value a user passes", []),
    ],
)
def test_negative_control_phrases_are_found(text: str, phrases: list[str]) -> None:
    assert sorted(phrase for phrase, _ in language.find(text)) == sorted(phrases)


def test_code_is_not_prose() -> None:
    text = "Use `a training`.\n```\nit goes on\n```\n[anew](anew.md) <!-- anew -->\n"
    assert [phrase for phrase, _ in language.find(language.prose(text))] == ["anew"]
    assert [text for _, text in language.strings("x = 'one'\ndef f():\n    '''Goes on.'''\n    raise E(f'{x} goes on')")] == [
        "Goes on.",
        " goes on",
    ]
