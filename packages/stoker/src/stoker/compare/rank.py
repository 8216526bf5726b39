"""One process of a run of several (ranks.py): it runs the program with the hooks, and rank 0 answers."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from stoker import _disk
from stoker.compare.child import run_observed
from stoker.compare.observed import RunRequest
from stoker.compare.ranks import ANSWER, REQUEST
from stoker.sandbox import end_with_parent


def send(data: bytes) -> None:
    """Write the answer of rank 0, whole or not at all."""
    if int(os.environ.get("RANK", "0")) == 0:
        _disk.write_file(Path(os.environ[ANSWER]), data, durable=False)


def main() -> None:
    """Run the program in this rank."""
    end_with_parent()
    sys.argv = sys.argv[:1]
    run_observed(msgspec.json.decode(os.environ[REQUEST], type=RunRequest), send)


if __name__ == "__main__":
    main()
