"""Encoders: raw values become the numbers that a model takes.

Digits (`split_digits`), sequences (`pad_sequences`), statistics (`analyze`) and market indicators (`features`). These are all the public
names; each is imported when first used.
"""

from typing import TYPE_CHECKING

from stoker._lazy import lazy

_LAZY = {
    "Digits": "stoker.encode.digits:Digits",
    "FeatureFrame": "stoker.encode.indicators.bars:FeatureFrame",
    "FeatureStream": "stoker.encode.indicators.engine:FeatureStream",
    "PackedSequences": "stoker.encode.sequences.pad:PackedSequences",
    "PaddedSequences": "stoker.encode.sequences.pad:PaddedSequences",
    "Statistics": "stoker.encode.statistics.result:Statistics",
    "analyze": "stoker.encode.statistics.analyze:analyze",
    "calendar": "stoker.encode.calendar_features:calendar",
    "features": "stoker.encode.indicators.engine:features",
    "join_days": "stoker.encode.calendar_features:join_days",
    "join_digits": "stoker.encode.digits:join_digits",
    "pack_sequences": "stoker.encode.sequences.store:pack_sequences",
    "pad_sequences": "stoker.encode.sequences.pad:pad_sequences",
    "parse_dates": "stoker.encode.statistics.analyze:parse_dates",
    "parse_numbers": "stoker.encode.statistics.analyze:parse_numbers",
    "split_days": "stoker.encode.calendar_features:split_days",
    "split_digits": "stoker.encode.digits:split_digits",
}

if TYPE_CHECKING:
    from stoker.encode.calendar_features import calendar as calendar
    from stoker.encode.calendar_features import join_days as join_days
    from stoker.encode.calendar_features import split_days as split_days
    from stoker.encode.digits import Digits as Digits
    from stoker.encode.digits import join_digits as join_digits
    from stoker.encode.digits import split_digits as split_digits
    from stoker.encode.indicators.bars import FeatureFrame as FeatureFrame
    from stoker.encode.indicators.engine import FeatureStream as FeatureStream
    from stoker.encode.indicators.engine import features as features
    from stoker.encode.sequences.pad import PackedSequences as PackedSequences
    from stoker.encode.sequences.pad import PaddedSequences as PaddedSequences
    from stoker.encode.sequences.pad import pad_sequences as pad_sequences
    from stoker.encode.sequences.store import pack_sequences as pack_sequences
    from stoker.encode.statistics.analyze import analyze as analyze
    from stoker.encode.statistics.analyze import parse_dates as parse_dates
    from stoker.encode.statistics.analyze import parse_numbers as parse_numbers
    from stoker.encode.statistics.result import Statistics as Statistics
else:
    # Hidden from type checkers: a module with __getattr__ would have every name, misspelt ones too.
    __getattr__, __dir__, __all__ = lazy(__name__, _LAZY)
