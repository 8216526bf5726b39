"""run.json: what a run is, so that it can be run again. Parsed strictly, replaced whole.

A record has one session for each process that worked on the run: the one that started it, and those that resumed it. A session
without an end was killed, or is still running.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from stoker.errors import TrainError
from stoker.files import write_file
from stoker.train.machine import Commit, Machine

if TYPE_CHECKING:
    from stoker.train.choice import Setup

NAME = "run.json"
VERSION = 1
MAX_BYTES = 64 << 20


class Session(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One process that worked on a run."""

    started: str
    """UTC, like 2026-11-15T16:20:00.123Z."""
    from_step: int
    ended: str | None = None
    how: str | None = None
    """"finished", "early", "budget", "signal", or the error that ended it."""
    last_step: int | None = None
    saved_step: int | None = None
    """The step of a checkpoint that it has written; of the first one, as long as the session lasts."""
    process: int
    command: list[str]
    folder: str
    """Where the command was given."""
    config: dict[str, Any]
    """The effective configuration, with the setup of the run: what a resumed run takes it from."""
    trials: list[dict[str, Any]] = []
    """What was measured to choose the setup, with its intervals."""
    stores: dict[str, str]
    """The digest of each store that was fed, by its use or name."""
    versions: dict[str, str]
    machine: Machine
    git: Commit | None


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All sessions of a run, the first one first."""

    format: Literal["stoker-run"] = "stoker-run"
    version: Literal[1] = 1
    sessions: list[Session]

    @property
    def last(self) -> Session:
        """The session that worked on the run last."""
        return self.sessions[-1]


def step_reached(record: Record) -> int:
    """The last step that a checkpoint of the run is known to have been saved at."""
    return max(max(one.from_step, one.last_step or 0, one.saved_step or 0) for one in record.sessions)


class _Head(msgspec.Struct):
    format: str
    version: int


def read_record(folder: Path) -> Record:
    """Read the run.json of a folder; one that breaks a rule raises a `TrainError` that says which."""
    path = folder / NAME
    try:
        if path.exists() and not path.is_file():
            raise TrainError(f"{path} is not a plain file.")
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise TrainError(f"{path} has more than {MAX_BYTES:,} bytes, which no run needs.")
        head = msgspec.json.decode(text, type=_Head)
        if head.format == "stoker-run" and head.version > VERSION:
            raise TrainError(f"{path} has version {head.version}, and this stoker reads up to {VERSION}. Use a newer stoker.")
        record = msgspec.json.decode(text, type=Record)
    except FileNotFoundError:
        raise TrainError(f"{folder} holds no {NAME}, so it is no run. Give the folder of a run.") from None
    except OSError as error:
        raise TrainError(f"{path} cannot be read ({error.strerror}).") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TrainError(f"{path} is damaged: {error}.") from error
    if not record.sessions:
        raise TrainError(f"{path} is damaged: it has no session.")
    if not all(0 <= (step or 0) < 2**63 for one in record.sessions for step in (one.from_step, one.last_step, one.saved_step)):
        raise TrainError(f"{path} is damaged: a step is below 0, or has more than 63 bits.")
    return record


def recorded_setup(folder: Path) -> Setup:
    """The setup that a run is computed in, as its last session recorded it before its first step."""
    from stoker.train.choice import parse_setup  # imports torch, which `stoker runs` has no use for

    config = read_record(folder).last.config
    if "setup" not in config:
        raise TrainError(f"{folder / NAME} has no setup, so none can be taken from it. Give the folder of a run of stoker.Trainer.")
    return parse_setup(config["setup"], where=str(folder / NAME))


def write_record(folder: Path, record: Record) -> None:
    """Replace the run.json of a folder in one step."""
    write_file(folder / NAME, msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")
