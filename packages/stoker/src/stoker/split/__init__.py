"""Split: a store into train, valid and test subsets that share no step.

    chronological   earlier steps to train on, later ones to evaluate on
    grouped         whole series, or groups of them
    purged          folds of time: cross-validation, or walk-forward
    given           samples that you choose, checked
    by_value        whole series by a value, such as the file that they come from
    where           the samples of series that fulfil a condition, of all or of a subset

A sample is made of steps: those it holds, those that its targets were made of (`horizon`), and those that its indicators needed
before it (`warm_up`). A subset has the samples all of whose steps lie between its boundaries, so no step is in two subsets.

These are all the public names. Each is imported when first used.
"""

from typing import TYPE_CHECKING

from stoker._lazy import lazy

if TYPE_CHECKING:
    from stoker.sampling.subset import Subset as Subset
    from stoker.split.scaler import Scaler as Scaler
    from stoker.split.scaler import pos_weight as pos_weight
    from stoker.split.selection import where as where
    from stoker.split.series_scaler import SeriesScaler as SeriesScaler
    from stoker.split.split import Folds as Folds
    from stoker.split.split import Split as Split
    from stoker.split.split import by_value as by_value
    from stoker.split.split import check as check
    from stoker.split.split import chronological as chronological
    from stoker.split.split import given as given
    from stoker.split.split import grouped as grouped
    from stoker.split.split import purged as purged
else:
    # Hidden from type checkers: a module with __getattr__ would have every name, misspelt ones too.
    __getattr__, __dir__, __all__ = lazy(__name__)
