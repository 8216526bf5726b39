"""The table: every program of the suite, in the order in which they are run."""

from __future__ import annotations

from benchmarks.verdicts.table.apart import APART
from benchmarks.verdicts.table.cpu import ON_CPU
from benchmarks.verdicts.table.cuda import ON_CUDA
from benchmarks.verdicts.table.everyday import EVERYDAY
from benchmarks.verdicts.table.frameworks import FRAMEWORKS
from benchmarks.verdicts.table.gpu import ON_GPU
from benchmarks.verdicts.table.mixed import MIXED
from benchmarks.verdicts.table.others import OTHERS
from benchmarks.verdicts.table.program import Program
from benchmarks.verdicts.table.ranks import ON_RANKS
from benchmarks.verdicts.table.sabotaged import SABOTAGED
from benchmarks.verdicts.table.stories import STORIES

__all__ = ["APART", "EVERYDAY", "ON_GPU", "OTHERS", "PROGRAMS", "SINGLES", "Program"]

SINGLES = [*ON_CPU, *ON_RANKS, *ON_CUDA]
PROGRAMS = [*SINGLES, *FRAMEWORKS, *MIXED, *STORIES, *SABOTAGED, *OTHERS, *EVERYDAY, *ON_GPU, *APART]
