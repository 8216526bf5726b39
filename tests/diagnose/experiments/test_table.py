"""The tables name every suspect and every fix."""

from __future__ import annotations

import pytest

from stoker.diagnose.edit_sites import SiteFinder
from stoker.diagnose.experiments.base import Experiment, Fix, LoaderFix, ModuleFix, StaleCalls
from stoker.diagnose.experiments.data import OtherBatches
from stoker.diagnose.experiments.table import EXPERIMENTS, FIXES, fix_named
from stoker.errors import OptionError


def test_the_registry_holds_every_fix() -> None:
    def subclasses(kind: type[Fix]) -> set[type[Fix]]:
        return {kind, *(inner for child in kind.__subclasses__() for inner in subclasses(child))}

    assert set(FIXES.values()) == subclasses(Fix) - {Fix, ModuleFix, LoaderFix, SiteFinder, OtherBatches} - subclasses(Experiment)
    assert all(issubclass(fix_named(name), Fix) for name in FIXES)
    with pytest.raises(OptionError, match="there is no fix 'magic'"):
        fix_named("magic")


def test_the_table_names_every_experiment() -> None:
    assert set(EXPERIMENTS.values()) == {*Experiment.__subclasses__(), *StaleCalls.__subclasses__()} - {StaleCalls}
