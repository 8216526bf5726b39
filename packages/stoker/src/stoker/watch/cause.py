"""Why steps became slower: the rule that compares counters before and during a slowdown, and the rank that is slow.

A cause must explain at least half of the time that a step takes longer. Causes outside of the program come first, because they show up
in everything else: a program that takes a core away also slows the loader. In this order:

    neighbour   threads wait for a core, other virtual machines or programs take cores, or a program came to the GPU
    memory      garbage collection, pages from the system, reads of swapped pages, a GPU allocator that has to empty its cache
    clock       the GPU's clock fell, or that of the CPU cores
    loader      the wait for batches grew
    memory      the process itself has grown, and nothing else explains the time
    step        what is left: the step itself computes longer
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import msgspec

from stoker._text import readable_bytes, readable_seconds
from stoker.watch.counters import Counters

Cause = Literal["loader", "step", "clock", "neighbour", "memory", "rank"]
SHARE = 0.5  # of the growth of a step that a cause must explain
OTHER_CORES = 0.4  # more cores in use by other programs
TICK_SECONDS = 0.02  # what the machine's CPU time may be wrong by, per core
BUSY = 0.3  # share of a step that the CPU computes: with less, its clock cannot be what matters
PAGE_SECONDS = 5e-7  # to get a page from the system
DISK_SECONDS = 1e-4  # to read a page from a disk
GROWN_BYTES = 64 << 20
GROWN = 0.1  # of the memory of the process
ADVICE = {
    "loader": "check the storage and the CPU use of the workers, or run `stoker diagnose`",
    "step": "run `stoker diagnose` to find out what the step does",
    "clock": "check cooling and power limits of the machine",
    "neighbour": "move the other program, or pin this one to cores of its own",
    "memory": "look for lists that grow, such as losses kept with their graph",
    "rank": "check that rank first: all others wait for it",
}


@dataclass(frozen=True, kw_only=True)
class Slowdown:
    """A lasting slowdown and its cause.

    Args:
        step: The step after which it was found.
        since: The step from which on all steps were slow.
        before_seconds: Time of a step before.
        after_seconds: Time of a step since then.
        cause: `"loader"`, `"step"`, `"clock"`, `"neighbour"`, `"memory"` or `"rank"`.
        evidence: What was measured.
    """

    step: int
    since: int
    before_seconds: float
    after_seconds: float
    cause: Cause
    evidence: str

    @property
    def slower(self) -> float:
        """How much longer a step takes, as a share."""
        return self.after_seconds / self.before_seconds - 1

    def as_dict(self) -> dict[str, Any]:
        """The fields, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        times = f"{readable_seconds(self.before_seconds)} -> {readable_seconds(self.after_seconds)}"
        return (
            f"step {self.step:,}: {100 * self.slower:.0f} % slower since step {self.since:,} ({times} per step). "
            f"Cause: {self.cause}. {self.evidence[:1].upper()}{self.evidence[1:]}. To do: {ADVICE[self.cause]}."
        )


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What this process knows of the cause."""

    cause: Cause
    evidence: str
    share: float  # of the growth of a step that it explains, as far as that is known
    busy_share: float = 0.0  # of the growth that is CPU time of this process


class _Rates:
    """Differences of two counters, per step or per second."""

    def __init__(self, first: Counters, last: Counters) -> None:
        steps = max(1, last.steps - first.steps)
        self.seconds = max(1e-9, (last.at_ns - first.at_ns) / 1e9)
        self.wait = (last.wait_ns - first.wait_ns) / 1e9 / steps
        delays = [delay - first.delays_ns.get(thread, 0) for thread, delay in last.delays_ns.items()]
        self.delay = max(delays, default=0) / 1e9 / steps
        self.workers_delay = max(0, last.workers_delay_ns - first.workers_delay_ns) / 1e9 / steps
        own = (last.own_cpu_ns - first.own_cpu_ns) / 1e9
        workers = max(0, last.workers_cpu_ns - first.workers_cpu_ns) / 1e9
        self.busy = own / steps
        self.own_cores = (own + workers) / self.seconds
        machine = _difference(first.machine_cpu_ns, last.machine_cpu_ns) / 1e9
        self.other_cores = max(0.0, machine / self.seconds - self.own_cores)
        self.steal_cores = _difference(first.steal_ns, last.steal_ns) / 1e9 / self.seconds
        self.collector = (last.collector_ns - first.collector_ns) / 1e9 / steps
        self.pages = (last.page_faults - first.page_faults) / steps
        self.disk = (last.disk_faults - first.disk_faults) / steps
        self.retries = _difference(first.gpu_retries, last.gpu_retries)


def _difference(first: int | None, last: int | None) -> int:
    return 0 if first is None or last is None else max(0, last - first)


def explain(
    earlier: Sequence[Counters],
    begin: Counters,
    end: Counters,
    *,
    before_seconds: float,
    after_seconds: float,
    waits: tuple[float, float] | None = None,
) -> Explanation:
    """The cause of a slowdown.

    Args:
        earlier: Counters before it, oldest first; at least one.
        begin: Counters soon after it began.
        end: Counters of now.
        before_seconds: Time of a step before.
        after_seconds: Time of a step now.
        waits: How long a step waited for its batch before and now. Without it the counters say so, less exactly if `begin` is early.
    """
    was, now = _Rates(earlier[0], earlier[-1]), _Rates(begin, end)
    growth = max(1e-12, after_seconds - before_seconds)
    slower = growth / before_seconds
    busy_share = (now.busy - was.busy) / growth

    def explained(cause: Cause, evidence: str, share: float) -> Explanation:
        return Explanation(cause=cause, evidence=evidence, share=min(1.0, share), busy_share=busy_share)

    # Other programs.
    least_cores = OTHER_CORES + TICK_SECONDS / now.seconds
    other_cores, own_cores = now.other_cores - was.other_cores, now.own_cores - was.own_cores
    delay = max(now.delay - was.delay, now.workers_delay - was.workers_delay)
    if delay >= SHARE * growth and other_cores >= own_cores:
        more = f"; other programs use {other_cores:.1f} more cores" if other_cores >= least_cores else ""
        return explained(
            "neighbour", f"threads wait {readable_seconds(delay)} longer per step for a core to run on{more}", delay / growth
        )
    stolen = now.steal_cores - was.steal_cores
    if stolen * after_seconds >= SHARE * growth:
        return explained(
            "neighbour", f"other virtual machines of this host take {stolen:.2f} more cores", stolen * after_seconds / growth
        )
    programs = _last(earlier, "gpu_programs")
    if programs is not None and end.gpu_programs is not None and end.gpu_programs > programs:
        return explained("neighbour", f"{end.gpu_programs} programs compute on the GPU, {programs:.0f} before", 1.0)

    # Memory that costs time.
    costs = {
        "garbage collection": now.collector - was.collector,
        "pages from the system": (now.pages - was.pages) * PAGE_SECONDS,
        "reads of pages from the disk": (now.disk - was.disk) * DISK_SECONDS,
    }
    grown = _grown_bytes(earlier, end)
    name, cost = max(costs.items(), key=lambda item: item[1])
    if sum(costs.values()) >= SHARE * growth:
        size = f"; the process has grown by {readable_bytes(grown)}" if grown > GROWN_BYTES else ""
        return explained(
            "memory", f"{readable_seconds(max(0.0, cost))} more per step go to {name}{size}", sum(costs.values()) / growth
        )
    if now.retries > 0 and was.retries == 0:
        return explained("memory", f"the GPU is full: {now.retries} allocations had to empty the cache of the allocator first", 1.0)

    # Clocks.
    gpu_mhz = _last(earlier, "gpu_mhz")
    if gpu_mhz and end.gpu_mhz and gpu_mhz / end.gpu_mhz - 1 >= SHARE * slower:
        why = f" ({end.gpu_throttle})" if end.gpu_throttle else ""
        return explained(
            "clock", f"the GPU runs at {end.gpu_mhz:,.0f} MHz, {gpu_mhz:,.0f} before{why}", (gpu_mhz / end.gpu_mhz - 1) / slower
        )
    spins = [counters.spin_ns for counters in earlier]
    spin = min(end.spin_ns, begin.spin_ns) / max(1.0, statistics.median(spins)) - 1
    if spin >= SHARE * slower and min(end.spin_ns, begin.spin_ns) > max(spins) and now.busy >= BUSY * after_seconds:
        if other_cores >= least_cores:
            more = f"other programs use {other_cores:.1f} more cores, and a fixed loop takes {100 * spin:.0f} % longer on this one"
            return explained("neighbour", more, spin / slower)
        core_mhz = _last(earlier, "core_mhz")
        mhz = f" ({end.core_mhz:,.0f} MHz, {core_mhz:,.0f} before)" if core_mhz and end.core_mhz else ""
        return explained(
            "clock", f"a fixed loop takes {100 * spin:.0f} % longer on this core{mhz}, with no other program on it", spin / slower
        )
    if other_cores >= least_cores and busy_share >= SHARE:
        more = (
            f"other programs use {other_cores:.1f} more cores, and the same step takes more CPU time: they share caches and memory"
        )
        return explained("neighbour", more, busy_share)

    # The program itself.
    wait = now.wait - was.wait if waits is None else waits[1] - waits[0]
    if wait >= SHARE * growth:
        return explained("loader", f"a step waits {readable_seconds(wait)} longer for its batch", wait / growth)
    if grown > GROWN_BYTES:
        return explained("memory", f"the process has grown by {readable_bytes(grown)}, and nothing else has changed", SHARE)
    rest = "its own threads compete for cores" if delay >= SHARE * growth else "clocks, memory and other programs are as before"
    return explained("step", f"the step itself takes {readable_seconds(growth - max(0.0, wait))} longer; {rest}", 0.0)


def _last(earlier: Sequence[Counters], name: str) -> float | None:
    """The median of a value before the slowdown; None where it is not known."""
    values = [value for counters in earlier if (value := getattr(counters, name)) is not None]
    return statistics.median(values) if values else None


def _grown_bytes(earlier: Sequence[Counters], end: Counters) -> int:
    """By how much the process has grown since the first counters, on the host or the GPU; 0 if by little."""
    grown = [0]
    for name in ("resident_bytes", "gpu_bytes"):
        first, last = getattr(earlier[0], name), getattr(end, name)
        if first is not None and last is not None and last - first >= GROWN * first:
            grown.append(last - first)
    return max(grown)


# Which rank slows a distributed run down. Ranks that train together have the same step times, because each all-reduce waits for the last
# one. So every rank explains its slowdown by its own counters, and publishes that through the key-value store of torch.distributed; nothing
# is added to the collectives of the program, and a rank that does not answer is not waited for. The rank whose own counters explain the
# time is the slow one.


NEAR_STEPS = 512  # explanations of the same slowdown are as near as this


class WatchedRanks:
    """The ranks of a run, as one of them sees them.

    Args:
        rank: The number of this one.
        number: How many there are.
        store: The key-value store of torch.distributed, or what has its `set`, `check` and `get`.
    """

    def __init__(self, rank: int, number: int, store: Any) -> None:
        self.rank = rank
        self.number = number
        self._store = store

    def publish(self, step: int, found: Explanation) -> None:
        """Let other ranks read what this one has found."""
        self._store.set(f"{self.rank}", msgspec.json.encode({"step": step, **asdict(found)}).decode())

    def collect(self, step: int) -> dict[int, Explanation]:
        """What ranks have published about the slowdown at this step, by rank."""
        explained = {}
        for rank in range(self.number):
            if self._store.check([f"{rank}"]):
                values = msgspec.json.decode(self._store.get(f"{rank}"))
                if abs(values.pop("step") - step) <= NEAR_STEPS:
                    explained[rank] = Explanation(**values)
        return explained


def slow_rank(explained: dict[int, Explanation], number: int) -> int | None:
    """The rank that explains the slowdown; None if none does, or if most do, as with a slow file system."""
    known = {rank: explanation for rank, explanation in explained.items() if explanation.cause != "step"}
    if not known:
        # A rank that computes longer is busy while the others sleep in the all-reduce.
        known = {rank: explanation for rank, explanation in explained.items() if explanation.busy_share >= SHARE}
    if not known or 2 * len(known) > number:
        return None
    return max(known, key=lambda rank: (known[rank].share, known[rank].busy_share))


def find_ranks() -> WatchedRanks | None:
    """The ranks that this process belongs to; None if it trains alone."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    if distributed.get_world_size() < 2:
        return None
    shared: Any = distributed.distributed_c10d
    store = shared.PrefixStore("stoker-watch", shared._get_default_store())
    return WatchedRanks(distributed.get_rank(), distributed.get_world_size(), store)
