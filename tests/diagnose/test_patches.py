"""Patches: the edits of each fix, and which of them are offered. A patch is written for a measured gain with the same losses alone."""

from __future__ import annotations

import math
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.diagnose.fake_engine import LOSSES, FakeEngine, Result
from tests.diagnose.findings import on_gpu
from tests.diagnose.measured import on_cpu
from tests.diagnose.sites import sites_of

from stoker.compare.sides import Version
from stoker.diagnose.edit_sites import CallSite, EditSites
from stoker.diagnose.finding import Finding
from stoker.diagnose.frameworks import SWITCHES
from stoker.diagnose.measurements import Advice, Cause, Patch
from stoker.diagnose.patches import (
    EDITS,
    EXACT,
    KEYWORDS,
    ROUNDING,
    EditableProgram,
    candidates,
    changes_of,
    offer_patch,
    tolerance_of,
    write_patch,
)
from stoker.diagnose.source_edits import edited
from stoker.diagnose.wording import ADVICE, patch_lines
from stoker.errors import TrainError

ROUNDED = [loss * (1 + 3e-7) for loss in LOSSES]
PROGRAM = """import torch
from torch import nn
from torch.utils.data import DataLoader as DL, TensorDataset

workers = 0
data = TensorDataset(torch.ones(8, 4))
loader = DL(data, batch_size=4, shuffle=True, num_workers=workers)  # the samples
model = nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
for (x,) in loader:
    begin(model)
    x = x.to("cpu")
    out = model(x)
    loss = out.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def patched(sites: EditSites, name: str, **values: int) -> str:
    """The main file after the edits of a fix, or why there are none."""
    program = EditableProgram(sites=sites, values=dict(values))
    try:
        return edited(program.sources, changes_of(name, program))[sites.main].decode()
    except TrainError as error:
        return str(error)


def changes(sites: EditSites, name: str, **values: int) -> list[str]:
    """The lines that a fix adds or changes, stripped."""
    after, before = patched(sites, name, **values).splitlines(), Path(sites.main).read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in after if line not in before]


def with_copies(sites: EditSites, text: str = 'x.to("cpu")') -> EditSites:
    """As if this line copied to a GPU."""
    lines = Path(sites.main).read_text(encoding="utf-8").splitlines()
    number = next(number for number, line in enumerate(lines) if text in line)
    place = CallSite(file=sites.main, line=number + 1, column=lines[number].index(text) + len(text), own=True)
    return msgspec.structs.replace(sites, calls=sites.calls | {"copies": [place]})


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> EditSites:
    return sites_of(tmp_path_factory.mktemp("program"), PROGRAM)


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("fused", ["optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)"]),
        ("tf32", ['torch.set_float32_matmul_precision("high")']),
        ("compile", ["model = torch.compile(model)"]),
        (
            "gather",
            [
                "loader = DL(data, batch_size=None, shuffle=False, num_workers=workers, sampler=torch.utils.data.BatchSampler("
                "torch.utils.data.RandomSampler(data), 4, drop_last=False))  # the samples"
            ],
        ),
    ],
)
def test_each_fix_is_an_edit(sites: EditSites, name: str, lines: list[str]) -> None:
    assert changes(sites, name) == lines


def test_pinned_memory_comes_with_copies_that_do_not_block(sites: EditSites) -> None:
    assert changes(with_copies(sites), "pinned") == [
        "loader = DL(data, batch_size=4, shuffle=True, num_workers=workers, pin_memory=True)  # the samples",
        'x = x.to("cpu", non_blocking=True)',
    ]


def test_workers_are_kept_only_if_there_are_any(sites: EditSites) -> None:
    assert "has no workers" in patched(sites, "persistent")
    some = msgspec.structs.replace(sites, workers=2)
    assert "persistent_workers=bool(workers))" in changes(some, "persistent")[0]
    assert "keeps them already" in patched(msgspec.structs.replace(some, persistent=True), "persistent")
    assert "computes num_workers" in patched(sites, "workers", workers=3)


def test_all_edits_together_are_python(sites: EditSites, tmp_path: Path) -> None:
    names = ["fused", "tf32", "compile", "pinned"]
    program = EditableProgram(sites=with_copies(sites), values={})
    text = edited(program.sources, [change for name in names for change in changes_of(name, program)])[sites.main].decode()
    compile(text, "train.py", "exec")
    assert text.count("torch.") == PROGRAM.count("torch.") + 2


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        (
            "tf32",
            PROGRAM.replace("workers = 0", "torch.backends.cuda.matmul.allow_tf32 = False; workers = 0"),
            "train.py:5 sets it",
        ),
        ("fused", PROGRAM.replace("torch.optim.AdamW(", "torch.optim.Rprop("), "no optimizer has a fused"),
        ("gather", PROGRAM.replace("DL(data,", "DL(TensorDataset(torch.ones(8, 4)),"), "is not DataLoader(name"),
        ("gather", PROGRAM.replace("shuffle=True", "shuffle=bool(1)"), "is not DataLoader(name"),
        ("gather", PROGRAM.replace("shuffle=True", "collate_fn=torch.utils.data.default_collate"), "sets collate_fn"),
        ("compile", PROGRAM.replace("model = nn.Linear(4, 1)", "model, _ = nn.Linear(4, 1), 0"), "no line of yours"),
        ("float32", PROGRAM, "no line of yours asks for float64"),
    ],
)
def test_an_unclear_edit_is_not_made_and_says_why(name: str, text: str, why: str, tmp_path: Path) -> None:
    assert why in patched(sites_of(tmp_path, text), name)


def test_a_class_of_the_users_is_not_torchs_loader(sites: EditSites) -> None:
    assert "MyLoader is not the DataLoader" in patched(msgspec.structs.replace(sites, loader_kind="MyLoader"), "pinned")
    assert "do not come from a DataLoader" in patched(msgspec.structs.replace(sites, calls={}, loader_kind=""), "pinned")


@pytest.mark.promise("P19", control=True)
def test_an_installed_package_is_never_edited(sites: EditSites) -> None:
    foreign = CallSite(file="/x/site-packages/kit.py", line=3, column=5, own=False)
    changed = msgspec.structs.replace(sites, calls={"optimizers": [foreign]}, main="/x/site-packages/kit/__main__.py")
    assert "kit.py:3, which belongs to an installed package" in patched(changed, "fused")
    assert "belongs to an installed package" in patched(changed, "tf32")
    lying = msgspec.structs.replace(foreign, own=True)  # checked again where files are read
    assert "belongs to an installed package" in patched(msgspec.structs.replace(sites, calls={"optimizers": [lying]}), "fused")


def test_float64_becomes_float32_wherever_it_is_asked_for(tmp_path: Path) -> None:
    text = (
        "import torch, numpy as np\nmodel = torch.nn.Linear(2, 1).double()\nx = torch.ones(2, dtype=torch.float64)\ny = np.double\n"
    )
    assert changes(sites_of(tmp_path, text), "float32") == [
        "model = torch.nn.Linear(2, 1).float()",
        "x = torch.ones(2, dtype=torch.float32)",
        "y = np.float32",
    ]


def test_a_module_next_to_the_script_is_edited_there(tmp_path: Path) -> None:
    parts = "import torch.optim as O\ndef make(model):\n    return O.SGD(\n        model.parameters(),\n        lr=0.1,\n    )\n"
    text = "import torch\nfrom parts import make\nmodel = torch.nn.Linear(4, 1)\nx = make(model)\n"
    text += "model(torch.ones(2, 4)).sum().backward()\nx.step()\n"
    program = EditableProgram(sites=sites_of(tmp_path, text, parts=parts), values={})
    ((file, after),) = edited(program.sources, changes_of("fused", program)).items()
    assert Path(file).name == "parts.py"
    assert after.decode() == parts.replace("lr=0.1,\n", "lr=0.1,\n        fused=True,\n")


MODELS = {
    "a name that is gone": (
        "def make():\n    made = torch.nn.Linear(4, 1)\n    return made\nbegin(make())\n",
        "    made = torch.compile(made)",
    ),
    "an attribute": (
        "class Run:\n    def __init__(self):\n        self.net = torch.nn.Linear(4, 1).to('cpu').float()\nbegin(Run().net)\n",
        "        self.net = torch.compile(self.net)",
    ),
    "a function that returns it": (
        "def make():\n    return torch.nn.Linear(4, 1)\nmodel = make()\nbegin(model)\n",
        "model = torch.compile(model)",
    ),
    "a function with two values": ("def make():\n    return torch.nn.Linear(4, 1), 1\nx, y = make()\nbegin(x)\n", None),
}


@pytest.mark.parametrize("form", MODELS)
def test_a_model_is_compiled_where_it_gets_a_name(form: str, tmp_path: Path) -> None:
    text, line = MODELS[form]
    sites = sites_of(tmp_path, f"import torch\n{text}")
    models = [[site for site in made if site.file == sites.main] for made in sites.models]  # without those of the test
    sites = msgspec.structs.replace(sites, models=models)
    if line is None:
        assert "no line of yours assigns the model" in patched(sites, "compile")
    else:
        assert line in patched(sites, "compile").splitlines()


def test_names_are_those_of_advice() -> None:
    assert {*EDITS, *KEYWORDS} - {"gather"} <= set(ADVICE)
    assert set(EXACT) | set(ROUNDING) <= {*EDITS, *KEYWORDS, *SWITCHES}
    assert [tolerance_of(name) for name in ("pinned", "fused", "tf32")] == [0.0, 1e-3, 5e-2]


# ---- what is offered ----


def advised(*names: str, verdict: Any = "optimizer") -> Finding:
    steps = [Advice(name=name, sentence=name, predicted=None) for name in names]
    return msgspec.structs.replace(on_gpu(), verdict=verdict, next=steps, measurements=on_cpu())


def patch_of(finding: Finding, sites: EditSites | None, play: Any, folder: Path, **options: Any) -> Patch:
    def find(version: Version, arguments: Any, *, quiet: bool) -> EditSites:
        if sites is None:
            raise TrainError("train.py ended.")
        return sites

    engine = play if isinstance(play, FakeEngine) else FakeEngine(play)
    patch = offer_patch(finding, __file__, path=folder / "a.patch", engine=engine, find=find, **options).patch  # type: ignore[arg-type]
    assert patch is not None
    return patch


def text_of(version: Version) -> str:
    return " ".join(file.decode() for file in version.edits.values())


def offered(
    finding: Finding, sites: EditSites, by_text: dict[str, Result], folder: Path, *, again: list[float] | None = None
) -> Patch:
    """What is offered if programs with these words in their edits take so much of the time of a step, or end so."""

    def play(version: Version) -> Result:
        results = [result for words, result in by_text.items() if words in text_of(version)]
        options: Any = next((result for result in results if isinstance(result, dict)), {})
        return {"seconds": 0.01 * math.prod(result for result in results if isinstance(result, float)), **options}

    return patch_of(finding, sites, FakeEngine(play, again=again), folder)


@pytest.mark.promise("P19")
def test_a_gain_with_the_same_losses_is_written(sites: EditSites, tmp_path: Path) -> None:
    before = Path(sites.main).read_bytes()
    patch = offered(advised("fused", "batch"), sites, {"fused": 0.5}, tmp_path)
    assert Path(sites.main).read_bytes() == before  # the file is not touched
    assert (patch.fixes, patch.tried and round(patch.tried.speedup), patch.tried and patch.tried.losses) == (["fused"], 2, "equal")
    assert patch.left_out == {"batch": "cannot be made by editing lines of the program"}
    assert patch.folder == str(Path(sites.main).parent)
    lines = patch_lines(patch)
    assert lines[0].endswith("a.patch: fused   tried 2.00x (2.00-2.00)   losses equal")
    assert "FASTER with equal results" in lines[2]
    words = lines[1].partition("git ")[2].split()
    assert words[:2] == ["-C", patch.folder]
    subprocess.run(["git", *words[:2], "apply", "--check", words[-1]], check=True)


def test_a_patch_of_files_below_the_current_folder_has_their_names(
    sites: EditSites, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(sites.main).parent.parent)
    patch = offered(advised("fused"), sites, {"fused": 0.5}, tmp_path)
    assert patch.folder is None
    assert (tmp_path / "a.patch").read_text().partition("\n")[2].startswith(f"--- a/{Path(sites.main).parent.name}/train.py\n")


@pytest.mark.promise("P19", control=True)
@pytest.mark.parametrize(
    ("name", "result", "why"),
    [
        ("fused", 1.0, "no gain was measured: 1.00x"),
        ("fused", 1.4, "no gain was measured: 0.71x"),
        ("fused", {"losses": [0.5 * loss for loss in LOSSES]}, "changes the training: losses changed by 50 %"),
        ("fused", {"losses": []}, "losses cannot be compared"),
        ("fused", {"error": "it raised ValueError"}, "it raised ValueError"),
        ("gather", {"losses": ROUNDED}, "changes the training"),  # no operation changes, so none may differ
    ],
)
def test_without_a_gain_or_with_other_losses_there_is_no_patch(
    name: str, result: Result, why: str, sites: EditSites, tmp_path: Path
) -> None:
    patch = offered(advised(name), sites, {"fused": result, "sampler": result}, tmp_path)
    assert why in patch.left_out[name]
    assert (patch.file, patch.fixes, list(tmp_path.iterdir())) == (None, [], [])
    assert patch_lines(patch)[0] == "none was written"


def test_rounding_is_allowed_to_fixes_that_round(sites: EditSites, tmp_path: Path) -> None:
    assert offered(advised("fused"), sites, {"fused": {"seconds": 0.005, "losses": ROUNDED}}, tmp_path).fixes == ["fused"]
    coarse: Result = {"seconds": 0.005, "losses": [1.02 * loss for loss in LOSSES]}
    assert offered(advised("fused"), sites, {"fused": coarse}, tmp_path).fixes == []
    on_a_gpu = msgspec.structs.replace(advised("tf32"), measurements=on_gpu().measurements)
    assert offered(on_a_gpu, sites, {"precision": coarse}, tmp_path).fixes == ["tf32"]


def test_where_the_program_differs_from_run_to_run_equal_losses_cannot_be_expected(sites: EditSites, tmp_path: Path) -> None:
    changed: Result = {"seconds": 0.005, "losses": ROUNDED}
    again = [loss * (1 + 1e-7) for loss in LOSSES]
    assert offered(advised("feed"), sites, {"sampler": changed}, tmp_path, again=again).fixes == ["gather"]
    assert offered(advised("feed"), sites, {"sampler": changed}, tmp_path).fixes == []


def test_fixes_that_gain_are_measured_together(sites: EditSites, tmp_path: Path) -> None:
    patch = offered(advised("fused", "feed", "compile"), sites, {"fused": 0.5, "sampler": 0.5}, tmp_path)
    assert (patch.fixes, patch.tried and round(patch.tried.speedup)) == (["gather", "fused"], 4)


@pytest.mark.parametrize(
    ("both", "why"), [({"error": "both at once fail"}, "both at once"), ({"seconds": 0.005}, "no further gain was measured: 2")]
)
def test_fixes_that_hinder_each_other_are_not_in_one_patch(both: Result, why: str, sites: EditSites, tmp_path: Path) -> None:
    def play(version: Version) -> Result:
        if "fused" in text_of(version) and "sampler" in text_of(version):
            return both
        return 0.004 if "fused" in text_of(version) else 0.005

    patch = patch_of(advised("fused", "feed"), sites, play, tmp_path)
    assert patch.fixes == ["gather"], "with equal losses before those that may differ"
    assert patch.left_out["fused"].startswith(why)


def test_a_file_that_was_changed_meanwhile_gets_no_patch(tmp_path: Path) -> None:
    own = sites_of(tmp_path, PROGRAM)
    program = EditableProgram(sites=own, values={})
    changed = changes_of("fused", program)
    (tmp_path / "train.py").write_text(PROGRAM + "\n")
    with pytest.raises(TrainError, match="was changed while it was measured"):
        write_patch(tmp_path / "a.patch", program.sources, changed)
    assert not (tmp_path / "a.patch").exists()


def test_without_advice_or_measurements_there_is_no_patch_and_no_run(tmp_path: Path) -> None:
    nothing = advised(verdict="host")
    assert patch_lines(patch_of(nothing, None, pytest.fail, tmp_path)) == ["none was written: no fix is advised"]
    unmeasured = msgspec.structs.replace(advised(verdict="none"), measurements=None, why="only 2 steps were measured")
    assert patch_lines(patch_of(unmeasured, None, pytest.fail, tmp_path))[0].endswith("only 2 steps were measured")


def test_without_a_verdict_what_gains_is_written_too(sites: EditSites, tmp_path: Path) -> None:
    nothing = advised(verdict="none")
    assert candidates(nothing) == []
    likely = msgspec.structs.replace(nothing, likely=Cause(verdict="data", share=0.6, sentence="data"))
    assert candidates(likely)[:2] == ["gather", "workers"]
    patch = offered(likely, sites, {"sampler": 0.5}, tmp_path)
    assert patch.fixes == ["gather"]
    lines = [line for line in patch_lines(patch) if line.startswith("without")]
    assert lines[0].startswith("without a verdict, fixes of the likely cause were tried")


@pytest.mark.parametrize(("at_most", "runs"), [(100.0, ["with gather", "with gather and fused"]), (1e-9, [])])
def test_each_fix_is_compared_once_within_the_time(at_most: float, runs: list[str], sites: EditSites, tmp_path: Path) -> None:
    told: list[str] = []
    engine = FakeEngine(
        lambda version: 0.01 * (0.5 if "fused" in text_of(version) else 1) * (0.5 if "sampler" in text_of(version) else 1)
    )
    patch = patch_of(advised("fused", "feed"), sites, engine, tmp_path, at_most=at_most, tell=told.append)
    assert (told, engine.compared) == (["finding the lines to edit"], runs)
    assert (patch.fixes, patch.left_out.get("fused")) == (
        (["gather", "fused"], None) if runs else ([], "there was no time left to try it")
    )


def test_a_program_whose_calls_cannot_be_found_says_so(tmp_path: Path) -> None:
    assert patch_of(advised("fused"), None, pytest.fail, tmp_path).left_out["fused"] == "train.py ended"


def test_fixes_for_a_gpu_are_not_candidates_elsewhere() -> None:
    finding = advised("tf32", "fused", "batch", verdict="compute")
    assert candidates(finding) == ["fused"]
    there = msgspec.structs.replace(finding, measurements=on_gpu().measurements)
    assert candidates(there) == ["tf32", "fused"]
