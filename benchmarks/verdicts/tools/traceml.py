"""TraceML (`traceml-ai` 0.5): the script as its documentation asks for it, run by `traceml run`.

Its quickstart wraps the body of the training loop in `trace_step(model)` and times the batches of the loop; `instrumented` makes
that edit. Scripts of Lightning and of the Trainer of Transformers need none.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HEAD = """
import traceml_ai as _traceml
import torch as _torch
from benchmarks.verdicts.measure import stop_after as _stop_after

_stop_after({seconds})
_traceml.init(mode="auto")


def _fetched(batches):
    if isinstance(batches, _torch.utils.data.DataLoader):
        return batches  # which it times by itself; without a time of batches it says nothing
    try:
        return _traceml.wrap_dataloader_fetch(batches)
    except (TypeError, RuntimeError):
        return batches


def _step(names):
    values = [*names.values(), *vars(names.get("self", object)).values()]
    modules = [one for one in values if isinstance(one, _torch.nn.Module)] or [_torch.nn.Module()]
    return _traceml.trace_step(max(modules, key=lambda one: sum(p.numel() for p in one.parameters())))

"""


def instrumented(source: str, seconds: float) -> str:
    """The source with its training loop traced: the innermost loop around a backward pass, or else around a step."""
    tree = ast.parse(source)
    loop = _innermost(tree, "backward") or _innermost(tree, "step")
    if loop is not None:
        item = ast.withitem(context_expr=ast.parse("_step({**globals(), **locals()})", mode="eval").body)
        loop.body = [ast.With(items=[item], body=loop.body)]
        if isinstance(loop, ast.For):
            loop.iter = _fetched(loop.iter)
    first = 1 if ast.get_docstring(tree) is not None else 0
    tree.body[first:first] = ast.parse(HEAD.format(seconds=seconds)).body
    return ast.unparse(ast.fix_missing_locations(tree))


def _fetched(batches: ast.expr) -> ast.expr:
    if isinstance(batches, ast.Call) and isinstance(batches.func, ast.Name) and batches.func.id == "enumerate":
        batches.args[0] = _fetched(batches.args[0])
        return batches
    return ast.Call(func=ast.Name(id="_fetched", ctx=ast.Load()), args=[batches], keywords=[])


def _innermost(tree: ast.AST, called: str) -> ast.For | ast.While | None:
    """The smallest loop in which a method of this name is called."""
    found = [
        loop
        for loop in ast.walk(tree)
        if isinstance(loop, ast.For | ast.While)
        and any(isinstance(one, ast.Call) and getattr(one.func, "attr", None) == called for one in ast.walk(loop))
    ]
    return min(found, key=lambda loop: sum(1 for _ in ast.walk(loop)), default=None)


def main(seconds: float, script: Path, arguments: Sequence[str]) -> dict[str, Any]:
    """What TraceML says of a program in this folder."""
    edited = Path("traced.py")
    edited.write_text(instrumented(script.read_text(), seconds))
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(script.parent), os.environ.get("PYTHONPATH", "")])}
    port = str(20_000 + os.getpid() % 20_000)
    command = [sys.executable, "-m", "traceml_ai.launcher.cli", "run", str(edited), "--logs-dir", "logs", "--run-name", "run"]
    command += ["--aggregator-port", port, *(["--args", *arguments] if arguments else [])]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    summaries = list(Path("logs").rglob("final_summary.json"))
    if not summaries:
        return {"said": [], "why": (done.stderr + done.stdout)[-300:]}
    summary = json.loads(summaries[0].read_text())
    said = summary.get("primary_diagnosis") or {}
    return {"said": [said.get("kind") or said.get("status") or ""], "why": said.get("reason") or said.get("summary")}


if __name__ == "__main__":
    print(json.dumps(main(float(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])))
