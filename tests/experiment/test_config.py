"""The types of a config: documented field by field, with the defaults of the library's own types."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import Struct

from stoker import BlockShuffle, EarlyStopping, Segments, Sequences, Windows
from stoker._types import docstrings
from stoker.experiment import config

STRUCTS = [
    one for one in vars(config).values() if isinstance(one, type) and issubclass(one, Struct) and one.__module__ == config.__name__
]


def fields_of(kind: type[Struct]) -> Iterator[tuple[str, Any]]:
    for field in msgspec.structs.fields(kind):
        yield field.name, field.default


@pytest.mark.parametrize("kind", STRUCTS)
def test_every_field_is_documented(kind: type[Struct]) -> None:
    assert {name for name, _ in fields_of(kind)} - docstrings(kind).keys() == set()
    assert kind.__doc__ or kind.__name__.startswith("_")


@pytest.mark.parametrize(
    ("section", "own"),
    [
        (config.WindowView, Windows),
        (config.SegmentView, Segments),
        (config.SequenceView, Sequences),
        (config.BlockOrder, BlockShuffle),
        (config.EarlyStoppingConfig, EarlyStopping),
    ],
)
def test_defaults_are_those_of_the_library(section: type[Struct], own: type) -> None:
    parameters = inspect.signature(own).parameters
    compared = 0
    for name, default in fields_of(section):
        if name in parameters and msgspec.NODEFAULT is not default and parameters[name].default is not inspect.Parameter.empty:
            assert parameters[name].default == default, name
            compared += 1
    assert compared


def test_views_have_all_fields_of_the_library() -> None:
    """`compat` reproduces another program's batches, and is for the library alone; layout and end have other names in a config."""
    for section, own in ((config.WindowView, Windows), (config.SegmentView, Segments)):
        names = {field.name for field in dataclasses.fields(own)} - {"compat"}
        assert names == {name for name, _ in fields_of(section)}
