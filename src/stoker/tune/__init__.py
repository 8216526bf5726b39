"""Tune: many trials of a model at once.

    Population            K models with settings of their own train in one step
    PopulationObjective   what a search evaluates with populations
    MemberRandom          random numbers of a member, for its loss

These are all the public names. Each is imported when first used.
"""

from typing import TYPE_CHECKING

from stoker._lazy import lazy

_LAZY = {
    "MemberRandom": "stoker.tune.randomness:MemberRandom",
    "Population": "stoker.tune.population:Population",
    "PopulationObjective": "stoker.tune.population_objective:PopulationObjective",
}

if TYPE_CHECKING:
    from stoker.tune.population import Population as Population
    from stoker.tune.population_objective import PopulationObjective as PopulationObjective
    from stoker.tune.randomness import MemberRandom as MemberRandom
else:
    # Hidden from type checkers: a module with __getattr__ would have every name, misspelt ones too.
    __getattr__, __dir__, __all__ = lazy(__name__, _LAZY)
