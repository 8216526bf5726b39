"""Profilers that the measurement windows use: of the user's lines, and of making a batch.

`Sampler` finds the lines that take the time, and `OtherThreads` a thread that computes beside the loop. `profile_loader` and
`profile_iterable` make some batches in this process and return a `Profile`: the lines, the stages (`Stages`: read, decode, transform,
collate), and the files that are read (`Reading`).
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import io
import math
import operator
import os
import signal
import stat
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePath
from types import CodeType, FrameType
from typing import Any, NamedTuple, Self

import msgspec
from torch.utils.data import DataLoader, IterableDataset

from stoker._clock import TASKS, now_ns
from stoker.diagnose.hooks import INSTALLED, NAMES, StepHooks, StepTimes, frames, is_own, own_line, shown
from stoker.diagnose.measurements import Blame, BusyThread, Reads, SourceLine

INTERVAL_SECONDS = 0.001
MAX_PLACES = 8
LONG_SECONDS = 1.0  # of making a batch: from there on as few batches as possible are made
MAX_DEPTH = 64  # calls of a stack, from the outermost
MOSTLY = 0.6  # share of the extra time of rare steps from which a line is to blame
NEXT_TO_NOTHING = 0.1  # share of the time of other steps up to which they do not run a line


Stack = tuple[tuple[CodeType, int], ...]  # lines that call each other, the outermost first


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowLine:
    """Where rare steps spend their extra time."""

    phase: str  # the phase with most of it
    in_phase: float  # share of the extra time in this phase
    place: SourceLine | None  # the user's innermost line with most of it; of a library if other steps run that line, too
    called: SourceLine | None  # the user's line that called the function of `place`
    alone: bool  # whether other steps spend next to no time there
    iterated: SourceLine | None = None  # the user's line that waits meanwhile for the next item of a `for` statement


class OtherThreads:
    """The program's other Python threads, and the sleep of this one, from its creation on."""

    def __init__(self) -> None:
        self._begin_ns, self._own_ns, self._others = now_ns(), time.thread_time_ns(), _ran_ns()

    def end(self) -> tuple[float, BusyThread | None]:
        """The share of the time that this thread slept, and the thread that computed most; None if none did."""
        spent, ran = max(1, now_ns() - self._begin_ns), _ran_ns()
        asleep = max(0.0, 1 - (time.thread_time_ns() - self._own_ns) / spent)
        shares = {thread: (ns - self._others.get(thread, ns)) / spent for thread, ns in ran.items()}
        busiest = max(shares, key=lambda thread: shares[thread], default=None)
        if busiest is None or shares[busiest] <= 0:
            return asleep, None
        line = own_line(sys._current_frames().get(busiest.ident or 0))
        return asleep, BusyThread(name=busiest.name, share=shares[busiest], place=line)


def _ran_ns() -> dict[threading.Thread, int]:
    """Nanoseconds that each other Python thread of the program has had a core."""
    ran = {}
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.name.startswith("stoker"):
            with contextlib.suppress(OSError, ValueError, IndexError):  # the thread has ended, or the system does not report it
                ran[thread] = int((TASKS / str(thread.native_id) / "schedstat").read_text().split()[0])
    return ran


class Sampler:
    """Samples the running line a thousand times per second: time by line and phase, and the lines of slow steps.

    A frame of torch or another package counts for the user's innermost line that called it. A timer's signal samples within the
    thread itself. A sampling thread would get the interpreter's lock mostly where torch releases it, and blame those lines too much;
    it is the fallback if the program uses the timer, or runs in another thread than the main one.
    `hooks` say which phase runs; without them there is one phase. Steps of at least `slow_from` seconds are slow.
    """

    def __init__(self, hooks: StepHooks | None = None, *, slow_from: float = math.inf) -> None:
        self.runs = False
        self._hooks = hooks
        self._slow_from = slow_from
        self._step: list[tuple[Stack, int]] = []  # samples of the current step
        self._stacks: tuple[Counter[Stack], Counter[Stack]] = (Counter(), Counter())
        """Nanoseconds of other steps and of slow ones, by stack."""
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

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start sampling."""
        self._last_ns = now_ns()
        self.runs = True
        # Whether this thread gets the signal, and the program does not use the timer.
        in_main = threading.current_thread() is threading.main_thread()
        unused = signal.getsignal(signal.SIGALRM) == signal.SIG_DFL and signal.getitimer(signal.ITIMER_REAL)[0] == 0.0
        if in_main and unused:
            signal.signal(signal.SIGALRM, self._on_timer)
            signal.siginterrupt(signal.SIGALRM, False)  # system calls are not interrupted
            signal.setitimer(signal.ITIMER_REAL, INTERVAL_SECONDS)
        else:
            self._stop.clear()
            self._thread = threading.Thread(target=self._watch, name="stoker-sampler", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop sampling."""
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
        self.sample(frame)
        # Started again only now: where another thread holds the interpreter, signals would interrupt their own handler without end.
        if self.runs:
            signal.setitimer(signal.ITIMER_REAL, INTERVAL_SECONDS)

    def _watch(self) -> None:
        while not self._stop.wait(INTERVAL_SECONDS):
            self.sample(sys._current_frames().get(self._target))

    def sample(self, frame: FrameType | None) -> None:
        """Count the time since the last sample for the current line: a long call into C is sampled once, at its end."""
        now = now_ns()
        phase = self._hooks.phase if self._hooks is not None else 0
        self._spent[phase, own_line(frame)] += now - self._last_ns
        if self._slow_from < math.inf:
            stack = [(one.f_code, one.f_lineno or 0) for one in frames(frame)]
            self._step.append((tuple(reversed(stack))[:MAX_DEPTH], now - self._last_ns))
        self._last_ns = now

    @property
    def num_slow(self) -> int:
        """Number of slow steps so far."""
        return self._steps[1]

    def end_step(self, times: StepTimes) -> None:
        """Assign the samples of a step that has ended."""
        slow = int(times.seconds >= self._slow_from)
        self._steps[slow] += 1
        for phase, spent in enumerate(times.phases_ns):
            self._phases[slow][phase] += spent
        samples, self._step = self._step, []  # the timer may add one meanwhile, which belongs to the next step
        for stack, spent in samples:
            self._stacks[slow][stack] += spent

    def rare_line(self) -> SlowLine | None:
        """Where slow steps spend their extra time; None without slow steps.

        1. The phase with most of the extra time.
        2. The chain of calls with most of the extra time (`MOSTLY`), from the outermost inwards.
        3. Of this chain, the user's innermost line that only slow steps run; else a line of a library that only they run.
        """
        others, slow = max(1, self._steps[0]), self._steps[1]
        if not slow:
            return None
        longer = [most / slow - usual / others for usual, most in zip(*self._phases, strict=True)]
        phase = max(range(len(NAMES)), key=lambda number: longer[number])
        usual, most = (_with_callees(one) for one in self._stacks)
        extra = {stack: spent / slow - usual[stack] / others for stack, spent in most.items()}
        total = sum(spent for stack, spent in extra.items() if len(stack) == 1)
        chain: list[Stack] = [()]
        while deeper := [one for one in extra if one[:-1] == chain[-1] and extra[one] >= MOSTLY * total > 0]:
            chain.append(max(deeper, key=lambda one: extra[one]))
        whole = sum(spent for stack, spent in usual.items() if len(stack) == 1)
        own_folder = str(PurePath(__file__).parent)
        alone = [
            one for one in chain[1:] if usual[one] <= NEXT_TO_NOTHING * whole and not one[-1][0].co_filename.startswith(own_folder)
        ]
        own = [one for one in chain[1:] if is_own(one[-1][0].co_filename)]
        # In a library, the first line is in its loop and calls the rare code; the second one is that code.
        here = next((one for one in reversed(own) if one in alone), (alone[:2] or own[-1:] or [()])[-1])
        above = next((one for one in reversed(own) if len(one) < len(here)), ())
        return SlowLine(
            phase=NAMES[phase],
            in_phase=longer[phase] / max(1e-9, sum(one for one in longer if one > 0)),
            place=_place(here),
            called=_place(above),
            alone=here in alone,
            iterated=_iterating(here),
        )

    def blames(self) -> dict[str, list[Blame]]:
        """Shares of each phase by line, the largest first."""
        return {name: found for number, name in enumerate(NAMES) if (found := self.of_phase(number))}

    def of_phase(self, number: int = 0) -> list[Blame]:
        """Shares of one phase by line."""
        spent = {place: time for (phase, place), time in self._spent.items() if phase == number}
        total = sum(spent.values()) or 1
        ordered = sorted(spent.items(), key=lambda one: -one[1])
        return [Blame(place=place, share=time / total) for place, time in ordered if place is not None][:MAX_PLACES]


def _with_callees(stacks: Counter[Stack]) -> Counter[Stack]:
    """The time in each call, including the calls that it makes."""
    found: Counter[Stack] = Counter()
    for stack, spent in stacks.items():
        for depth in range(1, len(stack) + 1):
            found[stack[:depth]] += spent
    return found


def _iterating(stack: Stack) -> SourceLine | None:
    """The user's outermost line in a stack that requests the next item of an iterable; None without one."""
    for depth, (outer, inner) in enumerate(pairwise(stack), 1):
        code = inner[0]
        gives_items = bool(code.co_flags & inspect.CO_GENERATOR) or code.co_name in ("__next__", "__iter__", "__getitem__")
        if gives_items and is_own(outer[0].co_filename):
            return _place(stack[:depth])
    return None


def _place(stack: Stack) -> SourceLine | None:
    """The innermost line of a stack."""
    if not stack:
        return None
    code, line = stack[-1]
    file = shown(code.co_filename)
    for folder in INSTALLED:  # shown from the package on
        file = file.rpartition(f"/{folder}/")[2]
    return SourceLine(file=file, line=line or code.co_firstlineno, function=code.co_qualname)


# ---- making batches in this process as a worker does, because workers cannot be profiled ----

MOST_BATCHES = 100

GetSample = Callable[..., Any]  # calls its first argument with the others, to observe how one sample is made


def maker(loader: DataLoader[Any], get_sample: GetSample = operator.call, *, every: int = 1) -> Callable[[], object]:
    """A function that makes one batch as a worker does: each batch, or every n-th as one of several workers."""
    dataset: Any = loader.dataset
    streams = isinstance(dataset, IterableDataset)
    items = _endless(dataset if streams else loader.sampler if loader.batch_sampler is None else loader.batch_sampler)

    def make() -> object:
        if streams:
            size = loader.batch_size
            samples = get_sample(next, items) if size is None else [get_sample(next, items) for _ in range(size)]
        else:
            for _ in range(every - 1):
                next(items)
            indices, many = next(items), getattr(dataset, "__getitems__", None)
            if loader.batch_sampler is None:
                samples = get_sample(operator.getitem, dataset, indices)
            elif many is not None:
                samples = get_sample(many, indices)
            else:
                samples = [get_sample(operator.getitem, dataset, one) for one in indices]
        return collated(loader.collate_fn, samples)

    return make


def _endless(iterable: Any) -> Iterator[Any]:
    """The items of an iterable, pass after pass, until a pass has none."""
    found = True
    while found:
        found = False
        for item in iterable:
            found = True
            yield item


def collated(collate: Callable[[Any], object], samples: Any) -> object:
    """Collate samples. `Stages` recognises this function, whatever kind of callable `collate` is."""
    return collate(samples)


def make_some(make: Callable[[], object], seconds: float, *, least: int = 2) -> tuple[int, float]:
    """Make batches for about `seconds`; returns their number and the exact seconds."""
    begin, count = now_ns(), 0
    while count < MOST_BATCHES and (count < least or now_ns() - begin < seconds * 1e9):
        make()
        count += 1
    return count, (now_ns() - begin) / 1e9


# ---- stages of making a batch, recognised by the names of the functions called ----

READS = {
    *("open", "open_code", "read", "readinto", "readline", "readlines", "read1", "pread", "preadv", "readall", "mmap", "fromfile"),
    *("read_csv", "read_parquet", "read_table", "read_row_group", "read_row_groups", "read_feather", "read_json", "read_hdf"),
    *("scan_parquet", "scan_csv", "loadtxt", "genfromtxt", "read_image", "read_file", "imread", "collect", "recv", "recv_into"),
    *("loadmat", "memmap", "safe_open", "load_file"),
}
READ_FILES = ("numpy/lib/_npyio_impl.py", "torch/serialization.py", "h5py/", "zarr/", "pyarrow/parquet/", "pandas/io/")
DECODES = {
    *("decompress", "loads", "frombuffer", "imdecode", "decode", "decode_image", "decode_jpeg", "decode_png", "decode_video"),
    *("unpackb", "fromstring", "strptime", "fromisoformat", "b64decode", "unpack", "unpack_from", "iter_unpack", "to_pandas"),
    *("parse", "raw_decode"),
}
DECODE_FILES = ("json/", "csv.py", "PIL/", "gzip.py", "soundfile", "_strptime.py")


class Stages:
    """Time by stage, from calls and returns. The outermost call that has a stage gets all the time within it."""

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
        """Shares of the time of a batch; what is not read, decoded or collated is the dataset's own work: transform."""
        whole = max(1, self._whole)
        shares = {stage: spent / whole for stage, spent in self._ns.items()}
        shares["transform"] = max(0.0, 1.0 - sum(shares.values()))
        return shares


def stage_of(frame: FrameType, event: str, argument: Any) -> str | None:
    """The stage that begins with a call of a Python function (`call`) or a C function (`c_call`); None for most."""
    if event == "c_call":
        owner = getattr(argument, "__self__", None)  # the module of a function
        apart = owner is gc or issubclass(type(owner), io.BytesIO | io.StringIO)  # a file in memory is not read
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


COUNTS = "/proc/self/io"
MOST_FILES = 1000  # items of a list argument that are checked for paths: it may as well be a list of texts
NO_FILES = ("/proc/", "/sys/", "/dev/")


class ReadBytes(NamedTuple):
    """Bytes read so far: from files, in the page cache or not, and from a disk."""

    from_files: int
    from_disk: int

    def since(self, before: ReadBytes) -> ReadBytes:
        """Bytes between two counts."""
        return ReadBytes(self.from_files - before.from_files, self.from_disk - before.from_disk)


class Reading:
    """Counts files and bytes read while it is entered. A file counts once per sample, however many calls read it.

    Bytes are those that the system counts for this process. Paths come from what Python opens, from arguments of functions that read,
    and from open files; a library that opens files by its own C code reports no path.
    """

    def __init__(self) -> None:
        self._counts: int | None = None
        self._samples = 0
        self._without = 0
        self._files: Counter[tuple[int, int]] = Counter()
        self._seen: set[tuple[int, int]] = set()
        self._bytes = ReadBytes(0, 0)
        self._own = 0  # bytes read to get the counts

    def __enter__(self) -> Self:
        try:
            self._counts = os.open(COUNTS, os.O_RDONLY)
        except OSError:  # not on this system: calls are counted nevertheless
            self._counts = None
        self._bytes = self._counted()
        _listen_to_open()
        _open_readings.append(self)
        sys.setprofile(self._event)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        _open_readings.remove(self)
        self._count_files()
        self._bytes = self._counted().since(self._bytes)
        if self._counts is not None:
            os.close(self._counts)

    def get_sample(self, get: Callable[..., Any], *arguments: Any) -> Any:
        """Get a sample, and count what it reads."""
        self._count_files()  # of collating
        before = self._counted()
        sample = get(*arguments)
        self._samples += 1
        self._without += not (self._counted().since(before).from_files or self._seen)
        self._count_files()
        return sample

    def _count_files(self) -> None:
        self._files.update(self._seen)
        self._seen.clear()

    def opened(self, file: Any) -> None:
        """Note a file that is read: a path, or an open file."""
        # By type: half-initialised objects may have no `__class__`.
        path: Any = getattr(file, "name", None) if issubclass(type(file), io.IOBase) else file
        if not issubclass(type(path), str | bytes | PurePath) or os.fsdecode(path).startswith(NO_FILES):
            return
        try:
            state = os.stat(path)  # noqa: PTH116  # may be a text that is not a path
        except (OSError, ValueError):
            return
        if stat.S_ISREG(state.st_mode):
            self._seen.add((state.st_dev, state.st_ino))  # whatever its path is

    def found(self, batches: int) -> Reads:
        """What was read for this number of batches."""
        reads = sum(self._files.values())
        known = self._counts is not None
        return Reads(
            batches=batches,
            samples=self._samples,
            cache_hits=self._without / self._samples if self._without < self._samples else None,
            files=len(self._files),
            reads=reads / batches,
            reads_a_file=reads / len(self._files) if self._files else None,
            bytes_read=self._bytes.from_files / batches if known else None,
            bytes_from_disk=self._bytes.from_disk / batches if known else None,
        )

    def _counted(self) -> ReadBytes:
        if self._counts is None:
            return ReadBytes(0, 0)
        text = os.pread(self._counts, 512, 0)
        numbers = dict(line.split(b": ") for line in text.splitlines())
        count = ReadBytes(int(numbers[b"rchar"]) - self._own, int(numbers[b"read_bytes"]))
        self._own += len(text)  # part of the next count
        return count

    def _event(self, frame: FrameType, event: str, argument: Any) -> None:
        if event not in ("call", "c_call") or stage_of(frame, event, argument) != "read":
            return
        if event == "c_call":
            self.opened(getattr(argument, "__self__", None))
            return
        code = frame.f_code
        for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
            value: Any = frame.f_locals.get(name)
            for one in value[:MOST_FILES] if issubclass(type(value), list | tuple) else [value]:
                self.opened(one)


_open_readings: list[Reading] = []  # those that are entered


@functools.cache
def _listen_to_open() -> None:
    """Report the files that Python opens for reading. An audit hook cannot be removed, so there is one for all readings."""

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and _open_readings:
            path, mode, flags = arguments
            if flags & (os.O_WRONLY | os.O_RDWR) == 0 and not set(mode or "") & set("wax+"):
                for one in _open_readings:
                    one.opened(path)

    sys.addaudithook(audit)


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """How a batch is made."""

    stages: dict[str, float]
    functions: list[Blame]
    reads: Reads


def profile_loader(loader: DataLoader[Any], *, seconds: float) -> Profile:
    """Profile a DataLoader: make some batches as one of its workers does."""
    every = max(1, loader.num_workers)
    return _profile(maker(loader), lambda reading: maker(loader, reading.get_sample, every=every), seconds)


def profile_iterable(pull: Callable[[], object], *, seconds: float) -> Profile:
    """Profile any other iterable; each batch counts as one sample."""
    return _profile(pull, lambda reading: functools.partial(reading.get_sample, pull), seconds)


def _profile(make: Callable[[], object], make_counted: Callable[[Reading], Callable[[], object]], seconds: float) -> Profile:
    """Profile a function that makes a batch, and another one that makes it while its reads are counted."""
    with Sampler() as sampler:
        batches, spent = make_some(make, seconds)
    least = 2 if spent < LONG_SECONDS * batches else 1
    stages = Stages()
    with stages:
        make_some(make, seconds, least=least)
    with Reading() as reading:  # last: by now the dataset's own caches are as full as they get
        batches, _ = make_some(make_counted(reading), seconds, least=least)
    return Profile(stages=stages.shares(), functions=sampler.of_phase(), reads=reading.found(batches))
