"""The exceptions of Stoker. Each is also the built-in that fits, so a plain ``except ValueError`` works.

    OptionError, ConfigError            an invalid argument, or an invalid key or value of a configuration
    SourceError and below               raw input: not found, empty, damaged, changed, or with values that do not fit
    StoreError and below                packed data: not found, there already, locked, or damaged
    FeedError, BatchError, LeakError    batches that cannot be made, that break what they promise, or that leak test data
    TrainError, CheckpointError         a training run that cannot continue, a checkpoint that cannot be written or used
    SearchError                         a search whose objective cannot separate configurations
    DiskError, DiskFullError            the operating system refused a disk operation
    ExtensionError                      a command, recipe or format of another package that is missing

A message is one line: what is wrong and where, found against expected, what to do. Where it applies, an error also says as fields which
`parameter` of a call is wrong, and which `path`, `row`, `line` and `column` of the data, so that no program has to parse a message: the
command line writes `sort=` as `--sort`. A message is shortened in its middle where a name or a
value from data makes it longer than `MAX_MESSAGE` characters. The first paragraph of a class says what it means, "To do" what helps:
docs/errors.md is made of both.
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

    Args:
        args: The message.
        parameter: The argument of the call that is wrong or that helps, like "sort"; None where it is none.
        path: The file, folder or URL that the error is about.
        row: The row of the file, from 1, without a header.
        line: The line of a text file in which the row begins, from 1.
        column: The name of the column.

    Example:
        >>> import stoker
        >>> try:
        ...     stoker.open("no/such/folder")
        ... except stoker.StokerError as error:
        ...     print(type(error).__name__)
        StoreNotFoundError
    """

    def __new__(cls, *args: Any, **fields: Any) -> Self:
        """An OSError keeps the arguments that it is made with here; other exceptions those of `__init__`."""
        return super().__new__(cls, *_shortened(args))

    def __init__(
        self,
        *args: Any,
        parameter: str | None = None,
        path: object = None,
        row: int | None = None,
        line: int | None = None,
        column: str | None = None,
    ) -> None:
        super().__init__(*_shortened(args))
        self.parameter = parameter
        self.path = None if path is None else str(path)
        self.row = row
        self.line = line
        self.column = column


def _shortened(args: tuple[Any, ...]) -> list[Any]:
    return [shorten(value) if isinstance(value, str) else value for value in args]


class OptionError(StokerError, ValueError):
    """An invalid argument, or an invalid combination of arguments.

    To do: Correct the argument that the message names. On the command line, `stoker COMMAND --help` lists all options.
    """

    @classmethod
    def expected(cls, parameter: str, value: object, expected: str) -> Self:
        """Make the error of an argument that has another value than expected: "folds is 1; expected an integer from 2."."""
        return cls(f"{parameter} is {value!r}; expected {expected}.", parameter=parameter)


class SourceError(StokerError):
    """Raw input that cannot be used.

    To do: This is the base of the errors below it: catch it to handle all of them.
    """


class SourceNotFoundError(SourceError, FileNotFoundError):
    """No file matches what was asked for.

    To do: Check the path from the current folder. Quote patterns, so that stoker and not the shell expands them.
    """


class SourceEmptyError(SourceError, ValueError):
    """Files were found, but they hold nothing usable.

    To do: Open one of the files: it has no rows, or `sql=` and `columns=` leave none.
    """


class SourceInvalidError(SourceError, ValueError):
    """A file that is damaged, unreadable, or not what its name says.

    To do: Fetch or write the file again. If its format is another one, give it the extension of that format;
    `delimiter=` and `encoding=` describe text.
    """


class SourceTooLargeError(SourceError, ValueError):
    """One value, line or row group needs more memory than the pack was given.

    To do: Pass more memory (`memory="4GB"`), or write the file with smaller row groups.
    """


class SourceChangedError(SourceError, RuntimeError):
    """A file changed while it was read.

    To do: Pack again when nothing writes to the files, or pack a copy.
    """


class SchemaError(SourceError, ValueError):
    """Files of one pack disagree about names or types of columns.

    To do: Fix the file that the message names, choose columns that all files have (`columns=`), or decide the type
    (`dtype=`).
    """


class BadValueError(SourceError, ValueError):
    """A value that its column cannot hold without loss.

    To do: Fix the value in the row that the message names, pass another type (`dtype=`), or say what means missing
    (`null=`).
    """


class TimeOrderError(SourceError, ValueError):
    """Times that do not increase strictly within a series.

    To do: Pass `sort=True` for rows in another order, and `duplicates=` for rows with equal times.
    """


class StoreError(StokerError):
    """A packed store that cannot be used.

    To do: This is the base of the errors below it: catch it to handle all of them.
    """


class StoreNotFoundError(StoreError, FileNotFoundError):
    """There is no store at this path.

    To do: Check the path, or make the store with `stoker.pack`. A pack that was killed left none: run it again.
    """


class StoreExistsError(StoreError, FileExistsError):
    """There is a store at this path already, and `replace` is False.

    To do: Choose another path, pass `replace=True`, or add rows with `stoker.append`.
    """


class StoreLockedError(StoreError, RuntimeError):
    """Another process is writing this store.

    To do: Wait for the process that the message names, or write to another folder. A lock ends with its process.
    """


class ManifestError(StoreError, ValueError):
    """The manifest breaks a rule of the format.

    To do: Pack again, or restore `manifest.json` from a copy. It was edited, cut, or written by a newer version.
    """


class StoreDamagedError(StoreError, ValueError):
    """A shard is missing, short, swapped or changed.

    To do: Restore the file that the message names from a copy, or pack again. `stoker inspect --verify` checks every byte.
    """


class StorageError(StoreError, ConnectionError):
    """Object storage that refuses a request, or fails at every attempt.

    To do: Check the address, the credentials in the environment and the network. Requests were repeated before this
    error.
    """


class FeedError(StokerError, RuntimeError):
    """Batches that cannot be made or resumed as requested.

    To do: Make the feed as the message says. To resume, use the data, view and order that the state was saved with.
    """


class BatchError(StokerError, ValueError):
    """Batches that break what they promise, or that cannot be made at all.

    To do: Fix the loader or the data that the message names: samples are repeated, missing, empty or reach over a
    boundary.
    """


class LeakError(StokerError, ValueError):
    """A split that lets a model train on what it is tested on.

    To do: Split whole series (`grouped`), in time (`chronological`), or pass the `horizon=` and `warm_up=` that the
    message names.
    """


class ConfigError(StokerError, ValueError):
    """A configuration with an invalid key or value.

    To do: Correct the line that the message names. `stoker train --fields` lists all keys; docs/configuration.md
    describes them.
    """


class TrainError(StokerError, RuntimeError):
    """A training run that cannot continue.

    To do: Do what the message says: it names the function or value of yours that a run needs.
    """


class NonFiniteError(TrainError, ArithmeticError):
    """A loss or a gradient is NaN or Inf; the weights are those before that step.

    To do: Feed missing values with `observed=True`, lower the learning rate, or skip such steps with `guard="skip"`.
    """


class CheckpointError(StokerError, RuntimeError):
    """A checkpoint that cannot be written or used.

    To do: Pass the folder of the run. To begin again, use another folder or `overwrite=True`.
    """


class CheckpointInvalidError(CheckpointError, ValueError):
    """A checkpoint that is damaged, unfinished, or belongs to something else.

    To do: Make model, optimizer and data equal to those that were saved, or name the difference in `allow=`. An older
    checkpoint of the folder may be whole.
    """


class DiskError(StokerError, OSError):
    """The operating system refused an operation on a file.

    To do: Check the permissions and the disk of the path in the message.
    """


class DiskFullError(DiskError):
    """There is no space left for a write.

    To do: Free space, or choose a path on another disk. Nothing is left behind, and what was there is as before.
    """


class SearchError(StokerError, RuntimeError):
    """A search that cannot find anything, such as one whose objective gives every configuration the same score.

    To do: Check that the objective depends on the parameters and returns a finite number, or pass `on_constant="warn"`.
    """


class ExtensionError(StokerError, LookupError):
    """An extension of Stoker (a command, a recipe or a format of another package) is not installed, or cannot be imported.

    To do: Install the package that the message names. `pip list` shows what is installed.
    """
