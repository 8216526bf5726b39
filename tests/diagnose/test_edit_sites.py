"""Which call makes the loader, the optimizer and the model, whatever it is named, and in whose file."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from tests.diagnose.sites import is_unwatched, sites_of

from stoker.diagnose.edit_sites import CallSite
from stoker.diagnose.frameworks import CLASSES
from stoker.diagnose.source_edits import SourceFile


def sources_of(sites: list[CallSite]) -> list[str]:
    """The text of each call."""
    found = []
    for one in sites:
        source = SourceFile.read(one.file)
        found.append(source.text_of(source.call_at(one)))
    return found


PROGRAM = """
import functools
import torch, torch.optim as O
from torch import nn
from torch.utils.data import DataLoader as DL, TensorDataset
from parts import Net, make

other = DL(TensorDataset(torch.ones(8, 4)), 4)
loader = (DL)(
    TensorDataset(torch.ones(8, 4)), batch_size=4,
)
Fast = functools.partial(O.AdamW, lr=0.1)

def main():
    model = make(4)
    unused = Net(4)
    optimizer = Fast(model.parameters())
    idle = O.SGD(unused.parameters(), lr=0.1)
    with torch.no_grad():
        model(torch.ones(2, 4))
    for number, (x,) in enumerate(loader):
        if number == 0:
            begin(model)
        loss = (model(x)
            .sum())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

main()
"""
PARTS = """
from torch import nn
class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, 1)
    def forward(self, x):
        return self.inner(x)
def make(width):
    made = Net(width)
    return made
"""


def test_calls_are_found_under_any_name_and_in_any_file_of_the_user(tmp_path: Path) -> None:
    sites = sites_of(tmp_path, PROGRAM, parts=PARTS)
    assert sources_of(sites.calls["loader"]) == ["(DL)(\n    TensorDataset(torch.ones(8, 4)), batch_size=4,\n)"]
    assert sources_of(sites.calls["optimizers"]) == ["Fast(model.parameters())"]  # not the one that makes no step
    assert [sources_of(made)[:3] for made in sites.models] == [["Net(width)", "make(4)", "main()"]]
    assert Path(sites.models[0][0].file).name == "parts.py"
    assert (sites.loader_kind, sites.workers, sites.persistent) == ("DataLoader", 0, False)
    assert sites.model_kind == "parts.Net"
    assert is_unwatched()


def test_what_a_package_makes_is_not_the_users(tmp_path: Path) -> None:
    package = tmp_path / "site-packages"
    package.mkdir()
    (package / "kit.py").write_text(
        "import torch\nfrom torch.utils.data import DataLoader\n"
        "def loader_of(data):\n    return DataLoader(data, 4)\n"
        "def optimizer_of(model):\n    return torch.optim.SGD(model.parameters(), lr=0.1)\n"
    )
    text = (
        f"import sys\nsys.path.insert(0, {str(package)!r})\nimport kit, torch\n"
        "loader = kit.loader_of(torch.utils.data.TensorDataset(torch.ones(8, 4)))\n"
        "model = torch.nn.Linear(4, 1)\noptimizer = kit.optimizer_of(model)\nfor (x,) in loader:\n    begin(model)\n"
        "    model(x).sum().backward()\n    optimizer.step()\n"
    )
    sites = sites_of(tmp_path, text)
    for found in (sites.calls[kind] for kind in ("loader", "optimizers")):
        assert [(Path(one.file).name, one.own) for one in found] == [("kit.py", False)]
    assert [sources_of(made)[0] for made in sites.models] == ["torch.nn.Linear(4, 1)"]


SETTINGS = """
from dataclasses import dataclass
@dataclass
class Settings:
    steps: int = 1
    def __post_init__(self):
        self.ready = True
class Runner:
    def __init__(self, steps=1):
        self.steps = steps
"""


@pytest.mark.parametrize("is_imported", [False, True], ids=["later", "already"])
def test_settings_of_a_framework_are_found_whenever_it_is_imported(
    is_imported: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, kind in (("kit_settings", "Settings"), ("kit_runner", "Runner")):
        monkeypatch.setitem(CLASSES, name, kind)
    text = (
        "from dataclasses import dataclass\nimport kit_settings as k\nfrom kit_runner import Runner as R\n"
        "@dataclass\nclass Mine(k.Settings):\n    more: int = 2\n"
        "class Own(R):\n    def __init__(self):\n        super().__init__(3)\n"
        "k.Settings(\n    steps=2)\nMine()\nR(1); Own()\n"
    )
    modules = {"kit_settings": SETTINGS, "kit_runner": SETTINGS}
    if is_imported:
        monkeypatch.syspath_prepend(tmp_path)
        for name, source in modules.items():
            (tmp_path / f"{name}.py").write_text(source)
            importlib.import_module(name)
    sites = sites_of(tmp_path, text, **modules)
    assert sources_of(sites.calls["Settings"]) == ["k.Settings(\n    steps=2)", "Mine()"]
    assert sources_of(sites.calls["Runner"]) == ["R(1)", "Own()"]
    assert is_unwatched()
    assert not any(type(finder).__name__ == "_AfterImport" for finder in sys.meta_path)


def test_of_a_loader_that_a_library_makes_again_the_one_of_the_user_is_found(tmp_path: Path) -> None:
    package = tmp_path / "site-packages"
    package.mkdir()
    (package / "again.py").write_text(
        "from torch.utils.data import DataLoader\nclass Shard(DataLoader):\n    pass\n"
        "def prepare(loader):\n    return Shard(loader.dataset, batch_sampler=loader.batch_sampler)\n"
    )
    text = (
        f"import sys\nsys.path.insert(0, {str(package)!r})\nimport again, torch\nfrom torch.utils.data import DataLoader, TensorDataset\n"
        "data, other = TensorDataset(torch.ones(8, 4)), TensorDataset(torch.ones(8, 4))\n"
        "loader = DataLoader(data, 4)\nvalid = DataLoader(other, 4)\nloader = again.prepare(loader)\n"
    )
    sites = sites_of(tmp_path, text)
    assert sources_of(sites.calls["loader"]) == ["DataLoader(data, 4)"]
    assert sites.loader_kind == "DataLoader"


@pytest.mark.gpu
def test_copies_of_batches_to_a_gpu_are_found(tmp_path: Path) -> None:
    text = (
        "import torch\nfrom torch.utils.data import DataLoader, TensorDataset\n"
        "loader = DataLoader(TensorDataset(torch.ones(8, 4)), 4)\nmodel = torch.nn.Linear(4, 1).to('cuda')\n"
        "for (x,) in loader:\n    begin(model)\n    x = x.to('cuda')\n    model(x).sum().backward()\n    x.cpu()\n"
    )
    sites = sites_of(tmp_path, text)
    assert sources_of(sites.calls["copies"]) == ["x.to('cuda')"]  # neither that of the weights nor the way back
