"""The table: every program of the suite, in the order in which they are run."""

from __future__ import annotations

from verdicts.table.apart import APART
from verdicts.table.cpu import ON_CPU
from verdicts.table.cuda import ON_CUDA
from verdicts.table.everyday import EVERYDAY
from verdicts.table.frameworks import FRAMEWORKS
from verdicts.table.gpu import ON_GPU
from verdicts.table.mixed import MIXED
from verdicts.table.others import OTHERS
from verdicts.table.program import Program
from verdicts.table.ranks import ON_RANKS
from verdicts.table.sabotaged import SABOTAGED
from verdicts.table.stories import STORIES

__all__ = ["APART", "EVERYDAY", "ON_GPU", "OTHERS", "PROGRAMS", "SINGLES", "Program"]

SINGLES = [*ON_CPU, *ON_RANKS, *ON_CUDA]
PROGRAMS = [*SINGLES, *FRAMEWORKS, *MIXED, *STORIES, *SABOTAGED, *OTHERS, *EVERYDAY, *ON_GPU, *APART]
