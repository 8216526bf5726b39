"""The configuration of a training: a file with strict keys becomes one frozen value.

    document    YAML or JSON -> plain values, each with its line
    overrides   --set NAME=VALUE on top
    checking    plain values -> Config, or one line that says what is wrong
    training    the fields: data, split, model and loss, optimizer and schedule, train
    writing     all values back into a file; manual: what the fields mean

This is the way of a file; it imports neither torch nor anything that is trained or fed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stoker.train.config.checking import check
from stoker.train.config.document import read_document
from stoker.train.config.overrides import override
from stoker.train.config.training import Config


def read_config(path: Path, *, assignments: Sequence[str] = ()) -> Config:
    """Read a configuration, with some values set anew."""
    return check(override(read_document(path), assignments, Config), Config)
