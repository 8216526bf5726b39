"""The exceptions of Stoker. Each is also the built-in that fits, so a plain ``except ValueError`` works.

    OptionError, ConfigError            an invalid argument, or an invalid key or value of a configuration
    SourceError and below               raw input: not found, empty, damaged, changed, or with values that do not fit
    StoreError and below                packed data: not found, there already, locked, or damaged
    FeedError, BatchError, LeakError    batches that cannot be made, that break what they promise, or that leak test data
    TrainError, CheckpointError         a training run that cannot continue, a checkpoint that cannot be written or used
    SearchError                         a search whose objective cannot separate configurations
    DiskError, DiskFullError            the operating system refused a disk operation

A message is one line: what is wrong and where, found against expected, what to do. It is shortened in its middle where a name or a
value from data makes it longer than `MAX_MESSAGE` characters.
"""

from __future__ import annotations

from typing import Any, Self

MAX_MESSAGE = 1000


def shorten(text: str, limit: int = MAX_MESSAGE) -> str:
    """Replace the middle of a text longer than `limit` by the number of characters left out. The end says what to do, so it stays."""
    if len(text) <= limit:
        return text
    end = limit // 3
    begin = limit - end - 40
    return f"{text[:begin]} […{len(text) - begin - end:,} characters left out…] {text[-end:]}"


class StokerError(Exception):
    """Base of all errors that Stoker raises on purpose. Long strings among its arguments are shortened.

    Example:
        >>> import stoker
        >>> try:
        ...     stoker.open("no/such/folder")
        ... except stoker.StokerError as error:
        ...     print(type(error).__name__)
        StoreNotFoundError
    """

    def __new__(cls, *args: Any) -> Self:
        """An OSError keeps the arguments that it is made with here; other exceptions those of `__init__`."""
        return super().__new__(cls, *_shortened(args))

    def __init__(self, *args: Any) -> None:
        super().__init__(*_shortened(args))


def _shortened(args: tuple[Any, ...]) -> list[Any]:
    return [shorten(one) if isinstance(one, str) else one for one in args]


class OptionError(StokerError, ValueError):
    """An invalid argument, or an invalid combination of arguments."""


class SourceError(StokerError):
    """Raw input that cannot be used."""


class SourceNotFoundError(SourceError, FileNotFoundError):
    """No file matches what was asked for."""


class SourceEmptyError(SourceError, ValueError):
    """Files were found, but they hold nothing usable."""


class SourceInvalidError(SourceError, ValueError):
    """A file that is damaged, unreadable, or not what its name says."""


class SourceTooLargeError(SourceError, ValueError):
    """One value, line or row group needs more memory than the pack was given."""


class SourceChangedError(SourceError, RuntimeError):
    """A file changed while it was read."""


class SchemaError(SourceError, ValueError):
    """Files of one pack disagree about names or types of columns."""


class BadValueError(SourceError, ValueError):
    """A value that its column cannot hold without loss."""


class TimeOrderError(SourceError, ValueError):
    """Times that do not increase strictly within a series."""


class StoreError(StokerError):
    """A packed store that cannot be used."""


class StoreNotFoundError(StoreError, FileNotFoundError):
    """There is no store at this path."""


class StoreExistsError(StoreError, FileExistsError):
    """There is a store at this path already, and `replace` is False."""


class StoreLockedError(StoreError, RuntimeError):
    """Another process is writing this store."""


class ManifestError(StoreError, ValueError):
    """The manifest breaks a rule of the format."""


class StoreDamagedError(StoreError, ValueError):
    """A shard is missing, short, swapped or changed."""


class StorageError(StoreError, ConnectionError):
    """Object storage that refuses a request, or fails at every attempt."""


class FeedError(StokerError, RuntimeError):
    """Batches that cannot be made or resumed as requested."""


class BatchError(StokerError, ValueError):
    """Batches that break what they promise, or that cannot be made at all."""


class LeakError(StokerError, ValueError):
    """A split that lets a model train on what it is tested on."""


class ConfigError(StokerError, ValueError):
    """A configuration with an invalid key or value."""


class TrainError(StokerError, RuntimeError):
    """A training run that cannot continue."""


class NonFiniteError(TrainError, ArithmeticError):
    """A loss or a gradient is NaN or Inf; the weights are those before that step."""


class CheckpointError(StokerError, RuntimeError):
    """A checkpoint that cannot be written or used."""


class CheckpointInvalidError(CheckpointError, ValueError):
    """A checkpoint that is damaged, unfinished, or belongs to something else."""


class DiskError(StokerError, OSError):
    """The operating system refused an operation on a file."""


class DiskFullError(DiskError):
    """There is no space left for a write."""


class SearchError(StokerError, RuntimeError):
    """A search that cannot find anything, such as one whose objective gives every configuration the same score."""
