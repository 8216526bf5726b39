"""TraceML (`traceml-ai` 0.5): the script as its documentation asks for it, run by `traceml run`.

Its quickstart wraps the body of the training loop in `trace_step(model)` and times the batches of the loop; `instrumented` makes
that edit. Scripts of Lightning and of the Trainer of Transformers need none.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from verdicts.forked import end_with_parent
from verdicts.measure import FEWEST

STEP = "_step({**globals(), **locals()})"
HEAD = """
from verdicts.measure import stop_after as _stop_after

_stop_after({seconds}, {fewest})
"""
HEAD_OF_LOOPS = """
import traceml_ai as _traceml
import torch as _torch

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


def instrumented(source: str, seconds: float, fewest: int = FEWEST) -> str:
    """The source with its training loop traced, which ends after some seconds and steps."""
    tree = ast.parse(source)
    loop = _training_loop(tree)
    head = HEAD.format(seconds=seconds, fewest=fewest)
    if loop is not None:
        item = ast.withitem(context_expr=ast.parse(STEP, mode="eval").body)
        traced: list[ast.stmt] = [ast.With(items=[item], body=loop.body)]
        if isinstance(loop, ast.While):  # without a time of batches TraceML says nothing
            check = ast.If(test=ast.UnaryOp(op=ast.Not(), operand=loop.test), body=[ast.Break()], orelse=[])
            turns = ast.parse("_fetched(iter(int, 1))", mode="eval").body
            every = ast.For(target=ast.Name(id="_", ctx=ast.Store()), iter=turns, body=[check, *traced], orelse=[])
            _replace(tree, loop, every)
        else:
            loop.iter, loop.body = _fetched(loop.iter), traced
        head = HEAD_OF_LOOPS + head  # TraceML replaces `Tensor.backward` by a function that calls torch's own
    first = 1 if ast.get_docstring(tree) is not None else 0
    tree.body[first:first] = ast.parse(head).body
    return ast.unparse(ast.fix_missing_locations(tree))


def _replace(tree: ast.AST, old: ast.stmt, new: ast.stmt) -> None:
    for node in ast.walk(tree):
        for _, statements in ast.iter_fields(node):
            if isinstance(statements, list) and old in statements:
                statements[statements.index(old)] = new


def _fetched(batches: ast.expr) -> ast.expr:
    if isinstance(batches, ast.Call) and isinstance(batches.func, ast.Name) and batches.func.id == "enumerate":
        batches.args[0] = _fetched(batches.args[0])
        return batches
    return ast.Call(func=ast.Name(id="_fetched", ctx=ast.Load()), args=[batches], keywords=[])


def _training_loop(tree: ast.AST) -> ast.For | ast.While | None:
    """The smallest loop that has a backward pass and a step of an optimizer, or else one of them."""

    def smallest(*called: str) -> ast.For | ast.While | None:
        found = [loop for loop in ast.walk(tree) if isinstance(loop, ast.For | ast.While) and {*called} <= _methods(loop)]
        return min(found, key=lambda loop: sum(1 for _ in ast.walk(loop)), default=None)

    return smallest("backward", "step") or smallest("backward") or smallest("step")


def _methods(loop: ast.AST) -> set[str]:
    return {node.func.attr for node in ast.walk(loop) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)}


class Waiting:
    """A fork of this process that becomes one of TraceML's own processes when it gets its command; has what its launcher calls of Popen.

    TraceML starts three processes that import torch, one after the other. These have it already.
    """

    def __init__(self) -> None:
        commands, self._commands = os.pipe()
        out, err = os.pipe(), os.pipe()
        self.stdout, self.stderr = os.fdopen(out[0], "rb"), os.fdopen(err[0], "rb")
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._commands)
            _become(commands, out[1], err[1])
        for descriptor in (commands, out[1], err[1]):
            os.close(descriptor)

    def start(self, script: str, words: Sequence[str], *, env: dict[str, str], cwd: str, out: bool) -> Waiting:
        """Run a script in it; `out` says whether its output is read, as its errors are."""
        command = {"argv": [script, *words], "env": env, "cwd": cwd, "out": out}
        os.write(self._commands, json.dumps(command).encode() + b"\n")
        os.close(self._commands)
        return self

    def poll(self) -> int | None:
        """Its exit status, or None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""
        end = time.monotonic() + (float("inf") if timeout is None else timeout)
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("traceml", timeout or 0.0)
            time.sleep(0.01)
        assert self.returncode is not None
        return self.returncode

    def terminate(self) -> None:
        """Ask it to end."""
        os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        os.kill(self.pid, signal.SIGKILL)


def _become(commands: int, out: int, err: int) -> None:
    """Wait for a command in a forked process, run it, and end."""
    end_with_parent()
    code = 1
    try:
        with os.fdopen(commands) as lines:
            command = json.loads(lines.readline() or "null")
        if command is None:
            os._exit(0)
        os.setsid()
        os.environ.clear()
        os.environ.update(command["env"])
        os.chdir(command["cwd"])
        if command["out"]:
            os.dup2(out, 1)
        os.dup2(err, 2)
        sys.argv = command["argv"]
        sys.path.insert(0, str(Path(sys.argv[0]).parent))  # as Python does; TraceML puts the script's own folder there
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def main(seconds: float, fewest: int, script: str, arguments: Sequence[str], processes: int = 1) -> None:
    """Print what TraceML says of a program in this folder."""
    from traceml_ai.launcher import cli, commands
    from traceml_ai.launcher.process import start_training_process

    edited = Path("traced.py")
    edited.write_text(instrumented(Path(script).read_text(), seconds, fewest))
    folder = str(Path(script).parent)
    sys.path.insert(0, folder)
    os.environ["PYTHONPATH"] = os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])
    aggregator, training = Waiting(), Waiting()
    alone = processes == 1 and STEP in edited.read_text()

    def start_aggregator(env: dict[str, str], cwd: str) -> Any:
        main_of_aggregator = Path(commands.__file__).parents[1] / "aggregator" / "aggregator_main.py"
        return aggregator.start(str(main_of_aggregator), [], env=env, cwd=cwd, out=False)

    def start_training(train_cmd: list[str], env: dict[str, str], cwd: str, *, capture_output: bool = False) -> Any:
        if not alone:  # by torchrun, whose variables trainers of frameworks read
            return start_training_process(train_cmd, env, cwd, capture_output=capture_output)
        runner = train_cmd.index("--") - 1
        return training.start(train_cmd[runner], train_cmd[runner + 1 :], env=env, cwd=cwd, out=capture_output)

    commands.start_aggregator_process, commands.start_training_process = start_aggregator, start_training
    sys.argv = ["traceml", "run", str(edited), "--logs-dir", "logs", "--run-name", "run", "--aggregator-port", _free_port()]
    sys.argv += ["--master-port", _free_port(), "--nproc-per-node", str(processes), *(["--args", *arguments] if arguments else [])]
    with contextlib.suppress(SystemExit):
        cli.main()
    answer: dict[str, Any] = {"said": [], "why": "no summary", "error": True}
    for summary in Path("logs").rglob("final_summary.json"):
        answer = _said(json.loads(summary.read_text()))
        if json.loads(summary.with_name("manifest.json").read_text())["status"] != "completed":
            errors = "".join(path.read_text() for path in sorted(Path("logs").rglob("training.stderr.log")))
            answer |= {"why": errors.strip()[-300:], "error": True}
    print("", json.dumps(answer), sep="\n", flush=True)


def _said(summary: dict[str, Any]) -> dict[str, Any]:
    """The diagnosis of a run, and after it the other findings about the time of a step in TraceML's order."""
    first = summary.get("primary_diagnosis") or {}
    others = [one.get("kind") for one in (summary.get("step_time") or {}).get("issues") or []]
    said = [first.get("kind") or "", *(other for other in others if other not in (None, first.get("kind")))]
    return {"said": said, "why": first.get("reason") or first.get("summary")}
