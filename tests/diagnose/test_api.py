"""Programs, unchanged, in a child. A sleep is a lower bound of the phase it is in, however busy the machine is.

Nothing else is asked of times. Where a line is to be seen by a thread that looks now and then, the line takes so long that it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.diagnose import programs
from tests.diagnose.measuring import measure_script

from stoker.diagnose.measurements import Measurements
from stoker.errors import OptionError, TrainError

pytestmark = [pytest.mark.slow, pytest.mark.promise("P18")]  # slow: a process for each

Run = Callable[..., Measurements]
SLOW = programs.PLAIN.replace("sleep(0.002)", "sleep(0.02)")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)

    def run(text: str, *arguments: str, module: bool = False) -> Measurements:
        Path("train.py").write_text(text)
        return measure_script("train" if module else "train.py", arguments, module=module, quiet=True, pace=0.05)

    return run


@pytest.mark.parametrize("module", [False, True], ids=["script", "module"])
def test_a_plain_loop(run: Run, module: bool, tmp_path: Path) -> None:
    measured = run(SLOW, "0", module=module)
    assert measured.phases.next >= 0.08
    assert measured.phases.rest >= 0.001
    assert len(measured.loop.seconds) >= 12
    assert measured.cached is not None
    assert measured.loader_alone is not None
    assert measured.loader_alone.median >= 0.08
    assert measured.loader.dataset == "Rows"
    assert measured.loader.place is not None
    assert (measured.loader.place.file, measured.loader.place.line) == ("train.py", 20)
    assert {blame.place.function for blame in measured.blames["next"]} >= {"Rows.__getitem__"}
    assert measured.work is not None
    assert {path.name for path in tmp_path.iterdir()} == {"train.py"}, "nothing was written where the user is"


def test_worker_processes(run: Run) -> None:
    measured = run(SLOW, "2")
    assert measured.loader.workers == 2
    assert measured.loader_alone is not None
    assert max(measured.loader_alone.seconds) > 0
    assert [blame.place.function for blame in measured.loader.functions][:1] == ["Rows.__getitem__"]


ZIPPED = """
import torch
x, net = torch.randn(40, 4), torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
for epoch in range(100_000):
    for batch, target in zip(x.split(8), x[:, :1].split(8)):
        loss = (net(batch) - target).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def test_a_loop_that_cannot_be_begun_again_and_ends_soon(run: Run) -> None:
    measured = run(ZIPPED)
    assert measured.loader.kind == "zip"
    assert measured.cached is not None, "batches of which copies were kept as they came"
    assert measured.work is not None
    assert len(measured.loop.seconds) >= 12


def test_a_while_loop_has_phases_and_makes_its_batches_itself(run: Run) -> None:
    measured = run(programs.WHILE)
    assert measured.framework is None
    assert measured.loader.kind == "loop"
    assert measured.cached is None
    assert measured.phases.prepare >= 0.004
    assert measured.phases.rest >= 0.002
    assert measured.loader_alone is not None
    assert measured.loader_alone.median >= 0.004


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("print('hello')", "train.py: no optimizer of torch made a step"),
        ("def f():\n    raise ValueError('bad\\nthing')\nf()", r"train.py \(train.py:2\) raised ValueError: bad … thing"),
        ("import sys\nsys.exit(3)", "train.py exited with code 3"),
        ("import os\nos._exit(7)", "train.py exited with code 7"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "train.py was ended by SIGKILL before anything was measured"),
        (
            "import torch.multiprocessing as mp\nmp.spawn(print, nprocs=2)",
            r"train.py \(train.py:2\) trains in processes .* \(2\), .* torchrun --nproc-per-node 2 -m stoker diagnose train.py",
        ),
        ("for x in", "train.py line 1 raised SyntaxError"),
    ],
)
def test_a_program_without_a_training_run_is_one_line(run: Run, text: str, line: str) -> None:
    with pytest.raises(TrainError, match=line) as caught:
        run(text)
    assert "\n" not in str(caught.value)


FAILING = "import os, sys\nprint('out')\nprint('no such file', file=sys.stderr)\n"


@pytest.mark.parametrize(
    ("end", "shown"),
    [("sys.exit(2)", "no such file\n"), ("os.abort()", "Fatal Python error: Aborted")],
    ids=["exit", "abort"],
)
def test_errors_of_a_failing_script_are_shown_also_if_its_output_is_not(
    run: Run, end: str, shown: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(TrainError):
        run(FAILING + end)
    assert shown in (found := capfd.readouterr().err)
    assert "out\n" not in found


BY_HAND = """
import os, torch
torch.set_num_threads(1)
rows, weights = list(torch.ones(64, 4, 8)), torch.zeros(8, requires_grad=True)
for epoch in range(100000):
    for number, x in enumerate(rows):
        loss = (x @ weights - 1).pow(2).mean()
        UPDATE
    END
"""


@pytest.mark.parametrize(
    "update",
    [
        "loss.backward(); weights.data.add_(weights.grad, alpha=-0.01); weights.grad = None",
        "weights = (weights - 0.01 * torch.autograd.grad(loss, [weights])[0]).detach().requires_grad_()",
    ],
    ids=["backward", "grad"],
)
def test_weights_that_are_updated_by_hand(run: Run, update: str) -> None:
    measured = run(BY_HAND.replace("UPDATE", update).replace("END", "pass"))
    assert len(measured.loop.seconds) >= 12
    assert measured.phases.backward > 0
    assert (measured.optimizer, measured.sandbox) == (None, "overlay")


def test_a_program_that_ends_by_exit_has_measurements(run: Run) -> None:
    update = "loss.backward(); weights.data.add_(weights.grad, alpha=-0.01); weights.grad = None"
    measured = run(BY_HAND.replace("UPDATE", update).replace("END", "os._exit(0)"))
    assert measured.steps_seen >= 12


ENDS = """
import atexit, os, sys, threading, time
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def say(*words):
    with open(os.environ["SAID"], "a") as file:
        print(*words, file=file)
say(type(__builtins__).__name__, __cached__)
for end in ("sys.exit(3)", "1 / 0", "pass"):
    fork = os.fork()
    if fork == 0:
        exec(end)
        sys.exit()
    say("fork", os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]))
def train():
    time.sleep(0.2)
    for step in range(40):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
    say("trained")
atexit.register(say, "end")
threading.Thread(target=train).start()
"""


def test_threads_exit_functions_and_forks_end_as_they_would_alone(
    run: Run, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = tmp_path_factory.mktemp("cache") / "said.txt"
    monkeypatch.setenv("TEST_CACHE", str(said.parent))  # not protected
    monkeypatch.setenv("SAID", str(said))
    assert run(ENDS).steps_seen > 0
    assert said.read_text().split("\n") == ["module None", "fork 3", "fork 1", "fork 0", "trained", "end", ""]


EPOCHS = """
import time
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
rows = TensorDataset(torch.ones(20, 4))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def run_epoch():
    for x, in DataLoader(rows, batch_size=4, num_workers=WORKERS):
        model(x).sum().backward()
        optimizer.step()
def validate():
    with torch.no_grad():
        for x, in DataLoader(rows, batch_size=4):
            model(x)
        time.sleep(0.2)
if __name__ == "__main__":
    for epoch in range(10000):
        run_epoch()
        validate()
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_short_epochs_that_make_their_loader_again(run: Run, workers: int) -> None:
    measured = run(EPOCHS.replace("WORKERS", str(workers)))
    assert measured.steps_seen < 5000, "it was not lost from sight"
    assert len(measured.loop.seconds) >= 12
    assert measured.loop.median < 0.2, "what passes between epochs is in no step"
    assert measured.cached is not None
    assert measured.loader.workers == workers
    assert measured.loader.persistent is (False if workers else None)
    assert 0 < measured.between_epochs["other"] < 1
    assert measured.between_epochs["loader"] > 0
    if workers == 0:  # its steps are far shorter than the validation
        assert measured.rare is not None
        assert measured.rare.between_epochs
        assert measured.rare.place is not None
        assert measured.rare.place.function == "validate"
        assert measured.rare.every == 5


def test_a_program_that_is_not_there_is_one_line() -> None:
    with pytest.raises(OptionError, match="expected a Python script"):
        measure_script("nowhere.py")
    with pytest.raises(TrainError, match=re.escape("no module 'no_such_module_here'")):
        measure_script("no_such_module_here", module=True, quiet=True)


def test_a_short_program_gives_what_there_was(run: Run) -> None:
    text = programs.PLAIN.replace("range(1000)", "range(1)").replace("return 64", "return 20")
    measured = run(text + "\n    raise KeyError('late')", "0")
    assert 0 < len(measured.loop.seconds) < 12
    assert measured.steps_seen == 5
    assert any("KeyError: 'late'" in note for note in measured.notes)


def test_the_program_computes_what_it_would_alone_until_control_is_taken(run: Run, run_python: Callable[..., str]) -> None:
    text = programs.PLAIN.replace("range(1000)", "range(1)")
    alone = run_python(text.replace("loss.backward()", "loss.backward(); print(repr(loss.item()))"), "0")
    measured = run(text, "0")
    expected = [float(line) for line in alone.splitlines() if not line.startswith("epoch")]
    assert len(expected) == 16
    assert measured.losses[: len(expected)] == expected


KILLED = """
import os, signal, subprocess, time, torch
from torch.utils.data import DataLoader
subprocess.Popen(["sleep", "60"], close_fds=False)  # keeps the pipe of the answer open
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
from torch.utils._python_dispatch import TorchDispatchMode
TorchDispatchMode.__enter__ = lambda self: os.kill(os.getpid(), signal.SIGABRT)  # called when operations are counted
for batch in DataLoader(torch.zeros(4000, 4), batch_size=4):
    time.sleep(0.01)
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
"""


def test_what_was_known_before_native_code_ended_the_program_is_kept(run: Run) -> None:
    measured = run(KILLED)
    assert len(measured.loop.seconds) >= 12
    assert measured.notes[0] == "train.py was ended by SIGABRT while it was measured; only what was measured before is known."


def test_a_program_that_is_killed_before_its_first_step_is_an_error(run: Run) -> None:
    text = KILLED.replace("model =", "os.kill(os.getpid(), signal.SIGABRT)\nmodel =", 1)
    with pytest.raises(TrainError, match=r"train.py was ended by SIGABRT before anything was measured"):
        run(text)
