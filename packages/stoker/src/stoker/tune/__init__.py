"""Tuning: the batch size by throughput, and hyperparameters by a search with a budget.

batch_size   the smallest batch that loses no throughput
step_of      one update of a trainer per call, for `batch_size`
search       the best configuration within a number of seconds or trials
Study        all trials of a search; `Study.open` reads one of Stoker or Optuna
"""

from typing import TYPE_CHECKING

from stoker._lazy import lazy

if TYPE_CHECKING:
    from stoker.tune.batch_sizes import BatchSizeChoice as BatchSizeChoice
    from stoker.tune.batch_sizes import batch_size as batch_size
    from stoker.tune.configured import step_of as step_of
    from stoker.tune.search_loop import search as search
    from stoker.tune.study import Study as Study
else:
    # Hidden from type checkers: a module with __getattr__ would have every name, misspelt ones too.
    __getattr__, __dir__, __all__ = lazy(__name__)
