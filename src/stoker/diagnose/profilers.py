"""The sampler: which line of the user's code the program is at, asked a thousand times a second in a stretch of its own.

Frames of torch and of other packages count for the nearest line of the user's that called them. The question is asked by a timer's
signal within the thread itself. A thread beside it would be let in mostly where torch gives up the interpreter's lock, and so would
blame those lines too much; it is the way out where the timer is the program's own, or the thread is not the main one.
"""

from __future__ import annotations

import gc
import io
import math
import operator
import os
import signal
import stat
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePath
from types import CodeType, FrameType, TracebackType
from typing import Any, NamedTuple, Self

import msgspec
from torch.utils.data import DataLoader, IterableDataset

from stoker._clock import now_ns
from stoker.diagnose.hooks import INSTALLED, NAMES, Boundaries, Times, is_own, own_frame, place_of, shown
from stoker.diagnose.measurements import Blame, Reads, SourceLine

INTERVAL_SECONDS = 0.001
MAX_PLACES = 8
MAX_DEPTH = 64
"""Of calls, from the outermost."""
MOSTLY = 0.6
"""Of the time that rare steps take longer: a line that has so much of it is to blame."""
NEXT_TO_NOTHING = 0.1
"""Of the time of other steps: where they spend no more, they do something else."""


Stack = tuple[tuple[CodeType, int], ...]
"""Lines that called each other, the outermost first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """Where rare steps spend the time that they take longer than others."""

    phase: str
    """Of a step."""
    in_phase: float
    """Share of that time."""
    place: SourceLine | None
    """The innermost line of the user's that has most of it; of a library where other steps are there, too."""
    called: SourceLine | None
    """The line of the user's that called the function of this one; None where there is none."""
    alone: bool
    """Whether other steps spend next to nothing there."""


class Sampler:
    """The time that a thread was seen at each line, by phase; and where steps of at least `slow_from` seconds spend theirs."""

    def __init__(self, boundaries: Boundaries | None = None, *, slow_from: float = math.inf) -> None:
        self.runs = False
        self._boundaries = boundaries
        self._slow_from = slow_from
        self._step: list[tuple[Stack, int]] = []
        """What was seen of the step that runs."""
        self._stacks: tuple[Counter[Stack], Counter[Stack]] = (Counter(), Counter())
        """Nanoseconds of other steps and of slow ones, at each line with what it calls."""
        self._phases = ([0] * len(NAMES), [0] * len(NAMES))
        self._steps = [0, 0]
        self._spent: Counter[tuple[int, SourceLine | None]] = Counter()
        self._target = threading.get_ident()
        self._last_ns = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Begin to look."""
        self._last_ns = now_ns()
        self.runs = True
        if _timer_is_free():
            signal.signal(signal.SIGALRM, self._on_timer)
            signal.siginterrupt(signal.SIGALRM, False)  # what waits for the system goes on waiting
            signal.setitimer(signal.ITIMER_REAL, INTERVAL_SECONDS, INTERVAL_SECONDS)
        else:
            self._stop.clear()
            self._thread = threading.Thread(target=self._watch, name="stoker-sampler", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Look no more, until it is started again."""
        if not self.runs:
            return
        self.runs = False
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None
        else:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def _on_timer(self, number: int, frame: FrameType | None) -> None:
        self.see(frame)

    def _watch(self) -> None:
        while not self._stop.wait(INTERVAL_SECONDS):
            self.see(sys._current_frames().get(self._target))

    def see(self, frame: FrameType | None) -> None:
        """Give the time since the last look to the line that runs now: a long call into C is seen once, at its end."""
        now = now_ns()
        own = own_frame(frame)
        phase = self._boundaries.phase if self._boundaries is not None else 0
        self._spent[phase, place_of(own) if own is not None else None] += now - self._last_ns
        if self._slow_from < math.inf:
            self._step.append((_stack(frame), now - self._last_ns))
        self._last_ns = now

    # ---- rare steps ----

    @property
    def num_slow(self) -> int:
        """Slow steps so far."""
        return self._steps[1]

    def end_step(self, times: Times) -> None:
        """A step has ended, and took so long."""
        slow = int(times.seconds >= self._slow_from)
        self._steps[slow] += 1
        for phase, spent in enumerate(times.phases_ns):
            self._phases[slow][phase] += spent
        for stack, spent in self._step:
            for depth in range(1, len(stack) + 1):
                self._stacks[slow][stack[:depth]] += spent
        self._step.clear()

    def rare_line(self) -> Line | None:
        """Where slow steps spend what they take longer than the others; None where there are none."""
        others, slow = max(1, self._steps[0]), self._steps[1]
        if not slow:
            return None
        longer = [most / slow - usual / others for usual, most in zip(*self._phases, strict=True)]
        phase = max(range(len(NAMES)), key=lambda number: longer[number])
        usual, most = self._stacks
        extra = {stack: spent / slow - usual[stack] / others for stack, spent in most.items()}
        total = sum(spent for stack, spent in extra.items() if len(stack) == 1)
        chain: list[Stack] = [()]
        while deeper := [one for one in extra if one[:-1] == chain[-1] and extra[one] >= MOSTLY * total > 0]:
            chain.append(max(deeper, key=lambda one: extra[one]))
        whole = sum(spent for stack, spent in usual.items() if len(stack) == 1)
        alone = [one for one in chain[1:] if usual[one] <= NEXT_TO_NOTHING * whole]
        own = [one for one in chain[1:] if is_own(one[-1][0].co_filename)]
        # In a library the first is the line of its loop that calls what is rare, so the next one says what that is.
        here = next((one for one in reversed(own) if one in alone), (alone[:2] or own[-1:] or [()])[-1])
        above = next((one for one in reversed(own) if len(one) < len(here)), ())
        return Line(
            phase=NAMES[phase],
            in_phase=longer[phase] / max(1e-9, sum(one for one in longer if one > 0)),
            place=_place(here),
            called=_place(above),
            alone=here in alone,
        )

    def blames(self) -> dict[str, list[Blame]]:
        """Shares of each phase by line, the largest first."""
        return {name: found for number, name in enumerate(NAMES) if (found := self.of_phase(number))}

    def of_phase(self, number: int = 0) -> list[Blame]:
        """Shares of one phase by line."""
        spent = {place: time for (phase, place), time in self._spent.items() if phase == number}
        total = sum(spent.values())
        ordered = sorted(spent.items(), key=lambda one: -one[1])
        return [Blame(place=place, share=time / total) for place, time in ordered if place is not None][:MAX_PLACES]


def _stack(frame: FrameType | None) -> Stack:
    """The lines that are running, from the outermost."""
    found: list[tuple[CodeType, int]] = []
    while frame is not None:
        found.append((frame.f_code, frame.f_lineno or 0))
        frame = frame.f_back
    return tuple(reversed(found))[:MAX_DEPTH]


def _place(stack: Stack) -> SourceLine | None:
    """Its innermost line."""
    if not stack:
        return None
    code, line = stack[-1]
    file = shown(code.co_filename)
    for folder in INSTALLED:  # by the name of the package
        file = file.rpartition(f"/{folder}/")[2]
    return SourceLine(file=file, line=line or code.co_firstlineno, function=code.co_qualname)


def _timer_is_free() -> bool:
    """Whether a signal reaches this thread, and nobody else uses the timer."""
    if threading.current_thread() is not threading.main_thread():
        return False
    return signal.getsignal(signal.SIGALRM) in (signal.SIG_DFL, None) and signal.getitimer(signal.ITIMER_REAL)[0] == 0.0


# Making batches here and now, in the main process, the way a worker of a DataLoader makes them: workers cannot be looked into.

MOST_BATCHES = 100
_END = object()

Ask = Callable[..., Any]
"""Calls its first argument with the others: a place to look at what one sample takes."""


def plainly(give: Callable[..., Any], *arguments: Any) -> Any:
    """Ask for a sample, and look at nothing."""
    return give(*arguments)


def maker(loader: DataLoader[Any], ask: Ask = plainly, *, every: int = 1) -> Callable[[], object]:
    """A function that makes one batch as a worker would: each, or where there are several workers every n-th."""
    dataset: Any = loader.dataset
    collate: Any = loader.collate_fn
    if isinstance(dataset, IterableDataset):
        items: Iterator[Any] = iter(())

        def following() -> Any:
            nonlocal items
            sample = next(items, _END)
            if sample is _END:
                items = iter(dataset)
                sample = next(items)
            return sample

        def from_stream() -> object:
            if loader.batch_size is None:
                return collated(collate, ask(following))
            return collated(collate, [ask(following) for _ in range(loader.batch_size)])

        return from_stream
    order: Any = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
    indices: Iterator[Any] = iter(())

    def wanted() -> Any:
        nonlocal indices
        number: Any = next(indices, _END)
        if number is _END:
            indices = iter(order)
            number = next(indices)
        return number

    def from_numbers() -> object:
        for _ in range(every - 1):
            wanted()
        numbers = wanted()
        if loader.batch_sampler is None:
            return collated(collate, ask(operator.getitem, dataset, numbers))
        many = getattr(dataset, "__getitems__", None)
        if many is not None:
            return collated(collate, ask(many, numbers))
        return collated(collate, [ask(operator.getitem, dataset, one) for one in numbers])

    return from_numbers


def collated(collate: Callable[[Any], object], samples: Any) -> object:
    """Whatever kind of callable it is, the time within this function is that of collating."""
    return collate(samples)


def make_some(make: Callable[[], object], seconds: float, *, least: int = 2) -> tuple[int, float]:
    """How many batches were made in about so many seconds, and in how many exactly."""
    begin, count = now_ns(), 0
    while count < MOST_BATCHES and (count < least or now_ns() - begin < seconds * 1e9):
        make()
        count += 1
    return count, (now_ns() - begin) / 1e9


# Stages of making a batch: the time of reading, decoding, transforming and collating, told by the names of what is called.
#
# The law: the outermost call that has a stage takes all the time within it.

READS = {
    *("open", "open_code", "read", "readinto", "readline", "readlines", "read1", "pread", "preadv", "readall", "mmap", "fromfile"),
    *("read_csv", "read_parquet", "read_table", "read_row_group", "read_row_groups", "read_feather", "read_json", "read_hdf"),
    *("scan_parquet", "scan_csv", "loadtxt", "genfromtxt", "read_image", "read_file", "imread", "collect", "recv", "recv_into"),
    *("loadmat", "memmap", "safe_open", "load_file"),
}
READ_FILES = ("numpy/lib/_npyio_impl.py", "torch/serialization.py", "h5py/", "zarr/", "pyarrow/parquet/", "pandas/io/")
DECODES = {
    *(
        "decompress",
        "loads",
        "frombuffer",
        "imdecode",
        "decode",
        "decode_image",
        "decode_jpeg",
        "decode_png",
        "decode_video",
        "unpackb",
    ),
    *(
        "fromstring",
        "strptime",
        "fromisoformat",
        "b64decode",
        "unpack",
        "unpack_from",
        "iter_unpack",
        "to_pandas",
        "parse",
        "raw_decode",
    ),
}
DECODE_FILES = ("json/", "csv.py", "PIL/", "gzip.py", "soundfile", "_strptime.py")


class Stages:
    """Time by stage, from calls and returns. The outermost call that has a stage takes all the time within it."""

    def __init__(self) -> None:
        self._ns = {"read": 0, "decode": 0, "collate": 0}
        self._stage: str | None = None
        self._depth = 0
        self._since = 0
        self._begin = 0
        self._whole = 0

    def __enter__(self) -> None:
        self._begin = now_ns()
        sys.setprofile(self._event)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        self._whole = now_ns() - self._begin

    def _event(self, frame: FrameType, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            if self._stage is not None:
                self._depth += 1
                return
            stage = stage_of(frame, event, argument)
            if stage is not None:
                self._stage, self._depth, self._since = stage, 0, now_ns()
        elif self._stage is not None:
            if self._depth:
                self._depth -= 1
                return
            self._ns[self._stage] += now_ns() - self._since
            self._stage = None

    def shares(self) -> dict[str, float]:
        """Of the time of a batch; what is neither read, decoded nor collated is the dataset's own work."""
        whole = max(1, self._whole)
        shares = {stage: spent / whole for stage, spent in self._ns.items()}
        shares["transform"] = max(0.0, 1.0 - sum(shares.values()))
        return shares


def stage_of(frame: FrameType, event: str, argument: Any) -> str | None:
    """The stage that a call begins, of a function of Python's (`call`) or of another language's (`c_call`); None for most."""
    if event == "c_call":
        owner = getattr(argument, "__self__", None)  # of a function its module
        apart = owner is gc or issubclass(type(owner), io.BytesIO | io.StringIO)  # a file in memory is not read from anywhere
        return None if apart else _of_name(getattr(argument, "__name__", ""))
    code = frame.f_code
    if code is collated.__code__:
        return "collate"
    file = code.co_filename
    if any(one in file for one in READ_FILES):
        return "read"
    if any(one in file for one in DECODE_FILES):
        return "decode"
    return _of_name(code.co_name) if "site-packages" in file or "/lib/python" in file else None


def _of_name(name: str) -> str | None:
    return "read" if name in READS else "decode" if name in DECODES else None


# Reading of files while batches are made: which files, how often, for how many samples, and how many bytes from where.
#
# Bytes are those that the system has counted for this process, whoever asked for them. Names of files come from what Python
# opens,
# from arguments of functions that read, and from open files that are read on; libraries that open files by themselves name none.

COUNTS = "/proc/self/io"
MOST_FILES = 1000
"""Of a list that a function is given: it may as well be a list of texts."""
NO_FILES = ("/proc/", "/sys/", "/dev/")


class Counted(NamedTuple):
    """Bytes so far: asked of files, cached or not, and fetched from a disk."""

    asked: int
    fetched: int

    def since(self, before: Counted) -> Counted:
        """Bytes between two counts."""
        return Counted(self.asked - before.asked, self.fetched - before.fetched)


class Reading:
    """Counts while it is entered. A file counts once for a sample, however many calls read it."""

    def __init__(self) -> None:
        self._counts: int | None = None
        self._samples = 0
        self._without = 0
        self._files: Counter[tuple[int, int]] = Counter()
        self._seen: set[tuple[int, int]] = set()
        self._bytes = Counted(0, 0)
        self._own = 0
        """Bytes that reading the counts took."""

    def __enter__(self) -> Self:
        global _listening
        try:
            self._counts = os.open(COUNTS, os.O_RDONLY)
        except OSError:  # not on this system: what is read by calls is known all the same
            self._counts = None
        self._bytes = self._counted()
        _listen()
        _listening = self
        sys.setprofile(self._event)
        return self

    def __exit__(self, *_: object) -> None:
        global _listening
        sys.setprofile(None)
        _listening = None
        self._count_files()
        self._bytes = self._counted().since(self._bytes)
        if self._counts is not None:
            os.close(self._counts)

    def ask(self, give: Callable[..., Any], *arguments: Any) -> Any:
        """Ask for a sample, and look at what it reads."""
        self._count_files()  # that collating has read
        before = self._counted()
        sample = give(*arguments)
        self._samples += 1
        self._without += not (self._counted().since(before).asked or self._seen)
        self._count_files()
        return sample

    def _count_files(self) -> None:
        self._files.update(self._seen)
        self._seen.clear()

    def opened(self, file: Any) -> None:
        """A file is being read, if this names one or is one that is open."""
        # By their types: objects that are half made may have no class to ask for.
        path: Any = getattr(file, "name", None) if issubclass(type(file), io.IOBase) else file
        if not issubclass(type(path), str | bytes | PurePath) or os.fsdecode(path).startswith(NO_FILES):
            return
        try:
            state = os.stat(path)  # noqa: PTH116  # may be a text that is no path at all
        except (OSError, ValueError):
            return
        if stat.S_ISREG(state.st_mode):
            self._seen.add((state.st_dev, state.st_ino))  # whatever it is called by

    def found(self, batches: int) -> Reads:
        """What so many batches took."""
        reads = sum(self._files.values())
        known = self._counts is not None
        return Reads(
            batches=batches,
            samples=self._samples,
            cache_hits=self._without / self._samples if self._without < self._samples else None,
            files=len(self._files),
            reads=reads / batches,
            reads_a_file=reads / len(self._files) if self._files else None,
            bytes_read=self._bytes.asked / batches if known else None,
            bytes_from_disk=self._bytes.fetched / batches if known else None,
        )

    def _counted(self) -> Counted:
        if self._counts is None:
            return Counted(0, 0)
        text = os.pread(self._counts, 512, 0)
        numbers = dict(line.split(b": ") for line in text.splitlines())
        count = Counted(int(numbers[b"rchar"]) - self._own, int(numbers[b"read_bytes"]))
        self._own += len(text)  # the next count has them
        return count

    def _event(self, frame: FrameType, event: str, argument: Any) -> None:
        if event not in ("call", "c_call") or stage_of(frame, event, argument) != "read":
            return
        for value in _arguments(frame) if event == "call" else [getattr(argument, "__self__", None)]:
            self.opened(value)


def _arguments(frame: FrameType) -> Iterator[object]:
    """Those by position and by name, and what lists of them have."""
    code = frame.f_code
    for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
        value: Any = frame.f_locals.get(name)
        if issubclass(type(value), list | tuple):
            yield from value[:MOST_FILES]
        else:
            yield value


_listening: Reading | None = None
_is_listening_set_up = False


def _listen() -> None:
    """Python calls a hook whenever it opens a file; a hook stays for good, so there is one."""
    global _is_listening_set_up
    if not _is_listening_set_up:
        _is_listening_set_up = True
        sys.addaudithook(_heard)


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or _listening is None:
        return
    path, mode, flags = arguments
    if flags & (os.O_WRONLY | os.O_RDWR) == 0 and not set(mode or "") & set("wax+"):
        _listening.opened(path)


# The profile of a loader: lines and stages of its time, and what it reads. Each from batches that are made for it alone.

LONG_SECONDS = 1.0
"""Of making a batch: from there on as few are made as can be."""


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What making a batch consists of."""

    stages: dict[str, float]
    functions: list[Blame]
    reads: Reads


def profile_loader(loader: DataLoader[Any], *, seconds: float = 0.5) -> Profile:
    """Make some batches of a DataLoader as one of its workers does."""
    workers = max(1, loader.num_workers)
    return _profile(lambda ask, every: maker(loader, ask, every=every), workers, seconds)


def profile_iterable(pull: Callable[[], object], *, seconds: float = 0.5) -> Profile:
    """Take some batches of any other iterable, each of which counts as one sample."""
    return _profile(lambda ask, every: lambda: ask(pull), 1, seconds)


def _profile(making: Callable[[Ask, int], Callable[[], object]], workers: int, seconds: float) -> Profile:
    make = making(plainly, 1)
    with Sampler() as sampler:
        batches, spent = make_some(make, seconds)
    least = 2 if spent < LONG_SECONDS * batches else 1
    stages = Stages()
    with stages:
        make_some(make, seconds, least=least)
    reading = Reading()
    with reading:  # last: by now the data set's own caches are as full as they get
        batches, _ = make_some(making(reading.ask, workers), seconds, least=least)
    return Profile(stages=stages.shares(), functions=sampler.of_phase(), reads=reading.found(batches))
