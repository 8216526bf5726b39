"""Compiling: a spec becomes a program, in the arithmetic that it asks for."""

from __future__ import annotations

from stoker.encode.indicators.exact import ExactAssembly
from stoker.encode.indicators.linking import link
from stoker.encode.indicators.program import Program
from stoker.encode.indicators.sentio import SentioAssembly
from stoker.encode.indicators.spec import Spec


def compile_spec(spec: Spec) -> Program:
    """The program of all features of a spec."""
    if spec.compat == "sentio":
        theirs = SentioAssembly()
        outputs = [feature.operator.sentio(theirs, feature.settings) for feature in spec.features]
        return link(theirs, outputs, "sentio", emit_from=spec.emit_from, pad=spec.pad)
    ours = ExactAssembly()
    outputs = [feature.operator.exact(ours, feature.settings) for feature in spec.features]
    return link(ours, outputs, "exact", emit_from=0, pad=0.0)
