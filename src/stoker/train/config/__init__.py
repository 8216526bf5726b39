"""The configuration of a training: a file with strict keys becomes one frozen value.

    document    YAML or JSON -> plain values, each with its line
    overrides   --set NAME=VALUE on top
    checking    plain values -> Config, or one line that says what is wrong
    training    the fields: data, split, model and loss, optimizer and schedule, train
    writing     all values back into a file; manual: what the fields mean

This is the way of a file; it imports neither torch nor anything that is trained or fed. Recipes read their own records by the
same way: `check(override(read_document(path), assignments, Record), Record)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stoker.train.config.checking import check
from stoker.train.config.document import Document, read_document
from stoker.train.config.overrides import override
from stoker.train.config.training import Config
from stoker.train.config.writing import to_tree, to_yaml

__all__ = ["Config", "Document", "check", "override", "read_config", "read_document", "to_tree", "to_yaml"]


def read_config(path: Path, *, assignments: Sequence[str] = ()) -> Config:
    """Read a configuration, with some values set anew."""
    return check(override(read_document(path), assignments, Config), Config)
