"""What all commands share: -q and -v, the line at the start, `-` for standard input, and options that several commands have.

Command     a command with all of this; `doing` is its line at the start
announce    a line on stderr, unless -q
print_json  the result with --json
bar         a progress bar, unless -q; with -v also the time of each phase
PATH        the type of a file or folder; TABLE, CONFIG and SPEC also take `-`
"""

from __future__ import annotations

import contextlib
import difflib
import inspect
import io
import json
import os
import re
import resource
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

import click
from click.shell_completion import CompletionItem

from stoker import _disk, extend
from stoker._clock import busy_ns, now_ns
from stoker._progress import Show, progress
from stoker._text import how_to_install, is_url, printable, readable_bytes
from stoker.errors import DiskError, OptionError, shorten

if TYPE_CHECKING:
    from rich.table import Table

    from stoker.store.pack.options import Time

# What is printed.


@dataclass
class _Output:
    """How much the command that runs prints."""

    quiet: bool = False
    verbose: bool = False
    as_json: bool = False
    stdin_folder: Path | None = None
    """Where standard input has been saved."""


_output = _Output()


def reset_output() -> None:
    """Forget the options of an earlier call in this process."""
    global _output
    _output = _Output()


def is_quiet() -> bool:
    """Whether only errors and the result are printed: with -q, and with --json unless -v is given too."""
    return _output.quiet or (_output.as_json and not _output.verbose)


def shows_progress() -> bool:
    """Whether training may print its progress, some of it on stdout."""
    return not (_output.quiet or _output.as_json)


def drops_script_output() -> bool:
    """Whether to drop what a script of the user prints: with -q, not with --json alone."""
    return _output.quiet


def announce(line: str) -> None:
    """Say on stderr what happens, unless -q. Of several processes, the first one speaks."""
    if not is_quiet() and not int(os.environ.get("RANK") or 0):
        click.echo(f"stoker: {printable(line)}", err=True)


def print_json(value: Any) -> None:
    """Print the result of a command as one JSON document. NaN and Inf, which JSON does not have, become null."""
    plain = json.loads(json.dumps(value, default=str), parse_constant=lambda name: None)
    click.echo(json.dumps(plain, allow_nan=False))


def say(word: str, sentence: str) -> None:
    """Print what a recipe reports, unless -q."""
    report(f"{word:<10} {sentence}")


def report(line: str) -> None:
    """Print a line about the work, unless -q: on stdout, or on stderr if stdout is for JSON."""
    if not is_quiet():
        click.echo(printable(line), err=_output.as_json)


def _detail(line: str) -> None:
    if _output.verbose:
        announce(line)


@contextlib.contextmanager
def bar(unit: str) -> Iterator[Show]:
    """A function to report progress to: a bar on a terminal unless -q, and with -v the time that each phase took."""
    phases: list[tuple[str, int, int]] = []

    def end_phase() -> None:
        name, began, count = phases[-1]
        _detail(f"{name}: {(now_ns() - began) / 1e9:.2f} s, {count:,} {unit}")

    with progress(unit=unit, enabled=not is_quiet()) as show:
        if not _output.verbose:
            yield show
            return

        def timed(phase: str, share: float, count: int) -> None:
            if not phases or phases[-1][0] != phase:
                if phases:
                    end_phase()
                phases.append((phase, now_ns(), count))
            phases[-1] = (*phases[-1][:2], count)
            show(phase, share, count)

        yield timed
    if phases:
        end_phase()


class _Nowhere(io.TextIOBase):
    """Drops what is written to it."""

    def write(self, text: str) -> int:
        return len(text)


@contextlib.contextmanager
def script_output(file: TextIO | None = None) -> Iterator[None]:
    """Send what a script prints in this process to a file (default: stdout); drop it with -q."""
    with contextlib.redirect_stdout(_Nowhere() if drops_script_output() else file or sys.stdout):
        yield


def shown_path(path: str) -> str:
    """A path as the user gave it: `-` for standard input."""
    folder = _output.stdin_folder
    return "-" if folder is not None and Path(path).parent == folder else path


def without_stdin_folder(text: str) -> str:
    """A message without the folder that standard input was saved in."""
    return text if _output.stdin_folder is None else text.replace(f"{_output.stdin_folder}{os.sep}", "")


def new_table(**options: Any) -> Table:
    """A table with a line below its headers, and nothing around it."""
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, pad_edge=False, **options)


# Files and standard input.

_COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ": "xz"}
_BINARY = {b"PAR1": ".parquet", b"ARROW1": ".arrow", b"\x93NUMPY": ".npy", b"PK\x03\x04": ".npz"}


class PathType(click.ParamType[str]):
    """The name of a file or a folder: an empty string or a NUL character is an error, and so is a URL, unless it may be one.

    Args:
        stdin: The ending of what `-` reads from standard input, "?" to find it from the content, or None if `-` is an error.
        needs: What is expected instead of `-`.
        url: Whether a URL of object storage is accepted.
    """

    name = "path"

    def __init__(self, *, stdin: str | None = None, needs: str = "the name of a file or folder", url: bool = False) -> None:
        self._stdin, self._needs, self._url = stdin, needs, url

    @property
    def takes_stdin(self) -> bool:
        """Whether `-` is accepted."""
        return self._stdin is not None

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check a name, and save standard input to a file if it is `-`."""
        try:
            if value == "-":
                if self._stdin is None:
                    raise OptionError(f"- (standard input) cannot be read here; expected {self._needs}.", path="-")
                return save_stdin(self._stdin, ctx)
            if self._url and is_url(value):
                from stoker.store.object_storage import check_url

                return check_url(value)
            _disk.check_path(value)
        except OptionError as error:
            self.fail(str(error), param, ctx)
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Let the shell complete names of files, and of recipes where one may stand instead of a configuration."""
        recipes = ctx.command.recipes() if param.name == "config" and isinstance(ctx.command, Command) else {}
        names = [CompletionItem(name) for name in recipes if name.startswith(incomplete)]
        return [*names, CompletionItem(incomplete, type="file")]


PATH = PathType()
SCRIPT = PathType(needs="the file of a script, as it imports from its folder and may run more than once")
STORE = PathType(url=True)
"""A folder, or a URL of object storage."""
TABLE = PathType(stdin="?")
"""Data: `-` may be CSV, JSON lines, Parquet, Arrow, NumPy, .ts or .arff."""
SOURCE = PathType(stdin="?", url=True)
CONFIG = PathType(stdin=".yaml")
SPEC = PathType(stdin=".json")


def save_stdin(ending: str, ctx: click.Context | None) -> str:
    """Save standard input to a file that exists while the command runs, and return its path.

    Readers seek, map and read twice, none of which a pipe can do.
    """
    if _output.stdin_folder is not None:
        raise OptionError("- (standard input) is given twice, but it can be read only once.", path="-")
    if sys.stdin is None or sys.stdin.closed:
        raise OptionError("- (standard input) is closed.", path="-")
    if sys.stdin.isatty():
        announce("reading standard input; Ctrl-D ends it …")
    source: io.BufferedReader[Any] = io.BufferedReader(cast(Any, sys.stdin.buffer), 1 << 16)
    head = source.peek()
    if not head.strip():
        raise OptionError("- (standard input) is empty.", path="-")
    root = (ctx or click.get_current_context()).find_root()
    folder = root.with_resource(_disk.temporary_folder())
    path = folder / f"stdin{_ending(head) if ending == '?' else ending}"
    _disk.copy_file(source, path)
    _output.stdin_folder = folder
    return str(path)


def _ending(head: bytes) -> str:
    """The ending of a file that begins like this."""
    for magic, name in _COMPRESSED.items():
        if head.startswith(magic):
            raise OptionError(
                f"- (standard input) is compressed with {name}. Decompress it first, as in: zcat FILE | stoker …", path="-"
            )
    for magic, ending in _BINARY.items():
        if head.startswith(magic):
            return ending
    first = head.removeprefix(b"\xef\xbb\xbf").lstrip().partition(b"\n")[0]
    if first.startswith((b"{", b"[")):
        return ".jsonl"
    if first.startswith(b"@"):
        return ".arff" if first.lower().startswith(b"@relation") else ".ts"
    return ".tsv" if b"\t" in first else ".csv"


# The command.


def _set_quiet(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        setattr(_output, param.name or "", True)
        if _output.quiet and _output.verbose:
            raise click.UsageError("-q and -v contradict each other. Give one of them.", ctx)


@dataclass
class Asked:
    """The object of click's context: what options of any command ask of `main`."""

    debug: bool = False
    command: click.Command | None = None
    """The command that runs."""


def _set_debug(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and isinstance(ctx.obj, Asked):
        ctx.obj.debug = True


def volume_options() -> list[click.Option]:
    """-q, -v and --debug."""
    shared: dict[str, Any] = {"is_flag": True, "expose_value": False, "callback": _set_quiet}
    return [
        click.Option(["--debug"], is_flag=True, expose_value=False, callback=_set_debug, help="Show the traceback of an error."),
        click.Option(["--quiet", "-q"], help="Print errors and the result, nothing else.", **shared),
        click.Option(["--verbose", "-v"], help="Print details too: options, time of each phase, CPU time and memory.", **shared),
    ]


class CommandGroup(click.Group):
    """A group of commands that suggests the nearest name for a wrong one."""

    advice_on_unknown = ""
    """What else an unknown command may be, in words."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is called."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if near := difflib.get_close_matches(args[0], self.list_commands(ctx), n=1):
                raise click.UsageError(f"{error.message.rstrip('.')}; did you mean {near[0]}?", ctx) from None
            if not self.advice_on_unknown or args[0].startswith("-"):
                raise
            raise click.UsageError(f"{error.message} {self.advice_on_unknown}") from None


OPTIONS = "stoker.options"
"""The entry of click's `Context.meta` with the words before a script: options of the command that runs it."""
RecipeOf = Callable[[list[str]], tuple[str, list[str]] | None]


def recipe_named(args: list[str]) -> tuple[str, list[str]] | None:
    """Return the recipe that the first argument names, and the rest; None where it is a file, or no name."""
    name, known = args[0] if args else "", extend.registered("recipes")
    if name in known:
        return name, args[1:]
    if not re.fullmatch(r"[a-z][\w-]*", name) or Path(name).exists():
        return None
    if near := difflib.get_close_matches(name, known, n=1):
        raise click.UsageError(f"{name} does not exist; did you mean the recipe {near[0]}?")
    raise click.UsageError(f"{name} is neither a file nor an installed recipe. {how_to_install()}")


class Command(click.Command):
    """A command of `stoker`, with -q, -v, and a line that says what it does before it loads anything heavy.

    Args:
        doing: That line; `{name}` is the value of an argument, `{a|b}` of the first that is given. None for a command that answers at
            once and loads no torch.
        runs_script: Whether the first argument is a script, and all after it are arguments of the script, as for `python`.
        version: Recipes may have their own version of this command under this name, see `stoker.extend.Recipe`.
        recipe_of: Finds the recipe of a call and the arguments for its version; by default the first argument names it.
    """

    def __init__(
        self, *args: Any, doing: str | None, runs_script: bool = False, version: str | None = None,
        recipe_of: RecipeOf = recipe_named, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(*args, **options)
        self.doing, self.runs_script, self._version, self._recipe_of = doing, runs_script, version, recipe_of
        self.allow_interspersed_args = not runs_script
        self.params += volume_options()

    def recipes(self) -> dict[str, click.Command]:
        """Return the versions of this command that the installed recipes have, by recipe."""
        if self._version is None:
            return {}
        commands = {name: extend.recipe(name).commands.get(self._version) for name in extend.registered("recipes")}
        return {name: command for name, command in commands.items() if command is not None}

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse the arguments, or hand them to the version of a recipe."""
        call = self._recipe_of(args) if self._version is not None else None
        if call is None:
            return super().make_context(info_name, args, parent, **extra)
        name, rest = call
        command = extend.recipe(name).commands.get(self._version or "")
        if command is None:
            known = ", ".join(self.recipes()) or "none"
            raise click.UsageError(f"the recipe {name} has no `stoker {self._version}`; recipes that have it: {known}.")
        path = f"{info_name} {name}" if args[:1] == [name] else info_name
        return command.make_context(path, rest, parent, **extra)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; those of a script are kept apart."""
        words = list(args)
        rest = self._parse(ctx, args)
        if self.runs_script:
            arguments = ctx.params["arguments"]
            ctx.meta[OPTIONS] = words[: len(words) - len(arguments) - 1]
            self._keep_for_script(ctx)
        return rest

    def _keep_for_script(self, ctx: click.Context) -> None:
        """Keep the arguments after the script, without a `--` before them; say so of one that looks like an option of this command."""
        arguments: tuple[str, ...] = ctx.params["arguments"]
        if arguments[:1] == ("--",):
            ctx.params["arguments"] = arguments[1:]
            return
        shared = {name for option in volume_options() for name in option.opts}  # as many scripts have them
        ours = {name for param in self.params for name in param.opts} - shared
        if stray := next((flag for word in arguments if (flag := word.partition("=")[0]) in ours), None):
            script = next(value for name, value in ctx.params.items() if name in ("script", "target"))
            announce(f"{stray} after {script} is an argument of the script; options of stoker {ctx.info_name} come before {script}")

    def _parse(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, and suggest the nearest name for a wrong option."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            near = f"; did you mean {error.possibilities[0]}?" if error.possibilities else "."
            raise click.UsageError(f"No such option {error.option_name!r}{near}", ctx) from None

    def invoke(self, ctx: click.Context) -> Any:
        """Say what happens, run the command, and with -v say what it took."""
        if isinstance(ctx.obj, Asked):
            ctx.obj.command = self
        if line := self._line(ctx.params):
            announce(f"{line} …")
        sources = {param.name: ctx.get_parameter_source(param.name or "") for param in self.params if param.name in ctx.params}
        given = [param for param in self.params if sources.get(param.name) is click.core.ParameterSource.COMMANDLINE]
        _detail("given: " + (", ".join(f"{one.opts[0]} {_shown(ctx.params[one.name or ''])}" for one in given) or "nothing"))
        began, busy = now_ns(), busy_ns()
        try:
            return super().invoke(ctx)
        finally:
            memory = readable_bytes(1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
            wall, cpu = (now_ns() - began) / 1e9, (busy_ns() - busy) / 1e9
            _detail(
                f"{ctx.command_path.removeprefix('stoker ')} took {wall:.2f} s, {cpu:.2f} s of CPU time, {memory} of memory at most"
            )

    def _line(self, params: dict[str, Any]) -> str | None:
        """The line at the start; None if an argument that it names is not given."""
        parts = re.split(r"\{([\w|]+)\}", self.doing or "")
        for i in range(1, len(parts), 2):
            values = [params[name] for name in parts[i].split("|") if params.get(name)]
            if not values:
                return None
            parts[i] = _shown(values[0])
        return "".join(parts)


def _shown(value: Any) -> str:
    """A value in a line, as the user gave it."""
    if isinstance(value, tuple):
        more = f" and {len(value) - 1:,} more" if len(value) > 1 else ""
        return f"{_shown(value[0])}{more}" if value else ""
    text = shown_path(str(value))
    return "standard input" if text == "-" else text


# Options of several commands.


def _set_json(ctx: click.Context, param: click.Parameter, value: bool) -> bool:
    if value and not ctx.resilient_parsing:
        _output.as_json = True
    return value


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

json_option: Decorator = click.option(
    "--json", "as_json", is_flag=True, callback=_set_json, help="Print the result as JSON, and nothing else."
)
device_option: Decorator = click.option("--device", metavar="DEVICE", help="cpu, cuda or cuda:N. [default: a GPU if there is one]")
folder_option: Decorator = click.option(
    "--folder", type=PATH, metavar="FOLDER", help="Folder of the run. [default: runs/ and the name of the data]"
)
resume_option: Decorator = click.option("--resume", type=PATH, metavar="FOLDER", help="Resume the run of this folder.")
plot_option: Decorator = click.option("--plot", type=PATH, metavar="FILE", help="Write a plot, .svg or .png.")
model_option: Decorator = click.option(
    "--model", metavar="FILE.py:FUNCTION", help="For a run of stoker.Trainer: a function that makes the model; it is run."
)
set_option: Decorator = click.option(
    "--set", "overrides", multiple=True, metavar="NAME=VALUE", help="Set a value of the configuration. May be repeated."
)
series_option: Decorator = click.option(
    "--series", metavar="COLUMN", help="Column that groups rows into series. Rows may be in any order."
)
time_option: Decorator = click.option("--time", metavar="COLUMN", help="Column that orders the steps; it must rise strictly.")
sort_option: Decorator = click.option("--sort", is_flag=True, help="Sort by --time instead of rejecting unsorted or equal times.")
module_option: Decorator = click.option("-m", "is_module", is_flag=True, help="SCRIPT is the name of a module, as for python -m.")


def overwrite_option(text: str, name: str = "overwrite") -> Decorator:
    """Whether to replace what exists: --overwrite."""
    return click.option("--overwrite", name, is_flag=True, help=text)


def seed_option(default: int, text: str = "Seed of all random choices.") -> Decorator:
    """The seed."""
    return click.option("--seed", type=click.IntRange(min=0), default=default, show_default=True, metavar="N", help=text)


memory_option: Decorator = click.option(
    "--memory",
    default="1GB",
    show_default=True,
    metavar="SIZE",
    help="Memory limit of the whole process, like 256MB. The input may be larger.",
)


MISSING = ["keep", "error", "ffill", "drop"]
"""What --missing may be."""


def choice_option(*names: str, choices: Sequence[str], default: str | None = None, **options: Any) -> Decorator:
    """An option with some possible values; the first is the default."""
    return click.option(*names, type=click.Choice(choices), default=default or choices[0], show_default=True, **options)


def missing_option(choices: Sequence[str] = MISSING) -> Decorator:
    """How to treat missing values."""
    return choice_option("--missing", choices=choices, help="How to treat missing values.")


pack_option: Decorator = click.option(
    "--pack",
    "pack_options",
    multiple=True,
    metavar="NAME=VALUE",
    help="An option of `stoker pack` for raw files, such as sort=true, delimiter=';' or null='-'. May be repeated.",
)


def read_pack_options(assignments: Sequence[str]) -> dict[str, Any]:
    """Return the values of `--pack NAME=VALUE` by name; `null` may be repeated."""
    words: dict[str, Any] = {"true": True, "false": False, "none": None}
    options: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        name = name.replace("-", "_")
        if not equals or not name.isidentifier():
            raise click.UsageError(f"--pack is {shorten(assignment, 200)!r}; expected NAME=VALUE, such as sort=true.")
        if name == "null":
            options["null"] = (*options.get("null", ()), value)
        else:
            options[name] = words.get(value.lower(), int(value) if value.isdecimal() else value)
    return options


_TIME = ("freq", "regular", "duplicates", "timezone", "ambiguous", "nonexistent")
_CSV = ("delimiter", "quote", "escape", "header", "skip", "null", "decimal", "encoding", "time_format")
_RESOURCES = ("memory", "threads", "ray")
PACK_FLAGS = (*_TIME, *_CSV, *_RESOURCES, "dtype", "columns", "sort", "missing")
"""Arguments of a pack that `--pack NAME=VALUE` of other commands may name."""


def pack_arguments(flags: Mapping[str, Any], *, time: Time | None = None) -> dict[str, Any]:
    """Return the arguments of `stoker.pack` for flags, which name the fields of its values; `time` is that of earlier data.

    Raises:
        OptionError: A flag about times is given without --time, or a name is none of a flag.
    """
    from stoker.store.formats.csv import Csv
    from stoker.store.pack.api import pack
    from stoker.store.pack.options import Resources, Time

    given = {name: value for name, value in flags.items() if name not in (*_TIME, *_CSV, *_RESOURCES)}
    if unknown := sorted(set(given) - {*inspect.signature(pack).parameters, "overlap"}):
        raise OptionError(f"{unknown[0]}= is not an option of pack.", parameter=unknown[0])
    for name, kind, fields in (("csv", Csv, _CSV), ("resources", Resources, _RESOURCES)):
        if values := {field: flags[field] for field in fields if field in flags}:
            given[name] = kind(**values)
    rules = {name: flags[name] for name in _TIME if name in flags}
    column = flags.get("time") or (time.column if time is not None else None)
    if rules and column is not None:
        known = time if time is not None and time.column == column else Time(column)
        given["time"] = replace(known, **rules)
    elif strange := [name for name, value in rules.items() if value != getattr(Time(""), name)]:
        raise OptionError(f"{strange[0]}= is about the times of the rows, so it needs time=.", parameter=strange[0])
    return given


FILE_ENDINGS = (".pt2", ".onnx", ".pt", ".pth", ".ts", ".safetensors", ".bin", ".ckpt", ".json", ".zip")
"""Endings of files: such a name never becomes a folder."""


def check_new_plot(name: str, *, overwrite: bool) -> Path:
    """The path of a plot to write; see `check_new_file`."""
    from stoker.train.plots import check_plot

    path = check_new_file("--plot", name, (".svg", ".png"), overwrite=overwrite)
    check_plot(path)  # matplotlib may be missing
    return path


def check_own_file(option: str, name: str, endings: Sequence[str], *, mark: bytes) -> Path:
    """The path of a file that is replaced only where the same command wrote it, which a mark in its first bytes says."""
    path = check_new_file(option, name, endings, overwrite=True)
    if path.is_file():
        with path.open("rb") as file:
            is_own = mark in file.read(4096)
    else:
        is_own = not os.path.lexists(name)
    if not is_own:
        raise OptionError(f"{option} is {name}, which exists and was not written by this command. Give another name.", path=path)
    return path


def check_new_file(option: str, name: str, endings: Sequence[str] = (), *, overwrite: bool) -> Path:
    """The path of a file to write. Checked before anything is computed: its ending, that it does not exist, and its folder.

    With `overwrite`, a plain file may exist; the path is then the one that a link leads to, so that the link stays.
    """
    path = Path(name)
    if endings and path.suffix.lower() not in endings:
        known = " or ".join(filter(None, (", ".join(endings[:-1]), endings[-1])))
        raise OptionError(f"{option} is {path}; expected a name that ends in {known}.", path=path)
    if not path.absolute().parent.is_dir():
        raise OptionError(f"{path} cannot be written: there is no folder {path.parent}. Create it first.", path=path)
    try:
        _disk.check_writable(path)
    except DiskError as error:
        raise OptionError(
            f"{path} cannot be written: {os.strerror(error.errno or 0)}. Give another name, or change the folder's rights.",
            path=path,
        ) from error
    if path.is_dir():
        raise OptionError(f"{option} is {path}, which is a folder; expected the name of a file.", path=path)
    if path.exists() and not path.is_file():
        raise OptionError(f"{option} is {path}, which is not a plain file; expected the name of one.", path=path)
    if os.path.lexists(path) and not overwrite:
        raise OptionError(f"{path} already exists. Replace the file (--overwrite), or give another name.", path=path)
    return path.resolve() if path.is_symlink() else path
