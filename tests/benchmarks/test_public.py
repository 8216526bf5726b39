"""Recipes of public scripts: they are complete, files come from a git repository, and ablations find a planted cause."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from pathlib import Path

import pytest
from benchmarks.verdicts.measure import ROOT
from benchmarks.verdicts.public import ablation, data
from benchmarks.verdicts.public.ablation import measure, noise, shares
from benchmarks.verdicts.public.recipes import Recipe, Repository, edit, fetch, lay_out, read_recipes
from benchmarks.verdicts.public.results import judge, judged, with_lines
from benchmarks.verdicts.public.truth import accepted

SCRIPT = """
import sys, time, torch
from torch.utils.data import DataLoader, Dataset
from helper import PAUSE

class Slow(Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, index):
        time.sleep(PAUSE)
        return torch.zeros(4)

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
for _ in range(1000):
    for batch in DataLoader(Slow(), batch_size=int(sys.argv[1])):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
"""


@pytest.fixture(scope="module")
def fetched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, Path]:
    """A recipe, and the files that were fetched from a repository with one commit."""
    folder = tmp_path_factory.mktemp("public")
    clone = folder / "owner" / "name"
    (clone / "examples").mkdir(parents=True)
    (clone / "examples" / "train.py").write_text(SCRIPT)
    (clone / "package").mkdir()
    (clone / "package" / "helper.py").write_text("PAUSE = 0.0\n")
    (clone / "unrelated.py").write_text("raise SystemExit\n")
    git = ["git", "-C", str(clone), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "all"]):
        subprocess.run([*git, *words], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    recipe = Recipe(
        name="slow",
        repository="owner/name",
        script="examples/train.py",
        files=["package/*.py"],
        path="../package",
        arguments="2",
        data=[("tokens", "tokens")],
        edits=[("../package/helper.py", "0.0", "0.002")],
    )
    target = folder / "scripts" / "slow"
    target.mkdir(parents=True)
    fetch(recipe, Repository(commit=commit, licence="MIT"), source=str(folder / "{owner}" / "{name}"), target=target)
    return recipe, target


def test_there_are_at_least_forty_recipes_at_whole_commits() -> None:
    recipes = read_recipes()
    assert len({(recipe.repository, recipe.script) for recipe in recipes.scripts.values()}) >= 40
    assert all(len(repository.commit) == 40 for repository in recipes.repositories.values())
    assert {recipe.repository for recipe in recipes.scripts.values()} == set(recipes.repositories)


def test_a_larger_batch_says_by_how_much() -> None:
    for recipe in read_recipes().scripts.values():
        assert (recipe.times > 1) == bool(recipe.larger or recipe.larger_edits), recipe.name


def test_recipes_with_unknown_names_are_refused(tmp_path: Path) -> None:
    table = tmp_path / "recipes.toml"
    table.write_text('[repositories]\n[[scripts]]\nname = "a"\nrepository = "b/c"\nscript = "d.py"\n')
    with pytest.raises(ValueError, match="unknown repository b/c"):
        read_recipes(table)
    known = (
        '[repositories]\n"b/c" = { commit = "0", licence = "MIT" }\n[[scripts]]\nname = "a"\nrepository = "b/c"\nscript = "d.py"\n'
    )
    table.write_text(known + 'data = [["gold", "x"]]\n')
    with pytest.raises(ValueError, match="unknown data maker gold"):
        read_recipes(table)


def test_only_the_files_of_a_recipe_are_fetched(fetched: tuple[Recipe, Path]) -> None:
    names = sorted(str(path.relative_to(fetched[1])) for path in fetched[1].rglob("*.py"))
    assert names == ["examples/train.py", "package/helper.py"]


def test_a_script_is_laid_out_with_edits_and_data(fetched: tuple[Recipe, Path], tmp_path: Path) -> None:
    recipe, files = fetched
    folder = lay_out(recipe, files, tmp_path / "run")
    assert "0.002" in (folder / "../package/helper.py").read_text()
    assert (folder / "tokens" / "val.bin").stat().st_size == 100_000
    assert "0.002" not in (files / "package/helper.py").read_text()
    with pytest.raises(ValueError, match=r"train.py has no 'absent'"):
        edit(folder, [("train.py", "absent", "")])


def test_makers_draw_the_same_data_each_time(tmp_path: Path) -> None:
    for turn in ("first", "second"):
        data.make("tokens", tmp_path / turn / "tokens")
    first, second = ((tmp_path / turn / "tokens" / "train.bin").read_bytes() for turn in ("first", "second"))
    assert first == second
    assert len(first) == 1_000_000


def test_scripts_are_judged_by_their_ablation_alone() -> None:
    data = {"data": 0.5, "optimizer": 0.1, "work": 0.4}
    said = {"verdict": "data", "second": "compute", "likely": None}
    verdicts = {
        "a": {"name": "a", **said},
        "b": {"name": "b", **said, "verdict": "host", "second": "data"},
        "c": {"name": "c", **said, "verdict": "none", "likely": "data"},
        "d": {"name": "d", "verdict": "error", "why": "it raised"},
    }
    truths = {name: {"name": name, "shares": data, "noise": 0.02} for name in "abc"}
    found = judge(verdicts, truths, 60)
    assert found["scripts"] == {
        "recipes": 60, "diagnosed": 4, "ran": 3, "verdict": 2, "likely": 1, "ablated": 3, "judged": 3, "top_1": 1, "top_2": 2,
    }  # fmt: skip
    assert [row.get("accepted") for row in found["programs"]] == [["data"]] * 3 + [None]
    noisy = judge(verdicts, truths | {"a": truths["a"] | {"noise": 0.3}}, 60)["scripts"]
    assert (noisy["ablated"], noisy["judged"], noisy["top_1"]) == (3, 2, 0)


def test_what_was_said_at_first_of_an_unseen_script_stays_counted(tmp_path: Path) -> None:
    def run(verdict: str, noise: float) -> None:
        said = {"name": "new", "verdict": verdict, "second": None, "likely": None}
        (tmp_path / "verdicts.jsonl").write_text(json.dumps({"name": "stub"}) + "\n" + json.dumps(said) + "\n")
        shares = {"data": 0.5, "optimizer": 0.1, "work": 0.4} if noise < 0.15 else {"data": 0.0, "optimizer": 0.0, "work": 1.0}
        (tmp_path / "ablations.jsonl").write_text(json.dumps({"name": "new", "shares": shares, "noise": noise}) + "\n")

    recipes = {"new": Recipe(name="new", set=2, repository="o/n", script="a.py")}
    run("compute", 0.02)
    rows = with_lines([], tmp_path, recipes)
    run("data", 0.4)  # the rule was changed, and the ablation is noise: the one before stays
    found = judged(with_lines(rows, tmp_path, recipes), recipes)
    assert (found["scripts"]["judged"], found["scripts"]["top_1"]) == (1, 1)
    assert (found["unseen"]["judged"], found["unseen"]["top_1"]) == (1, 0)
    assert found["sets"] == {"2": found["unseen"]}
    assert found["programs"][0]["first"] == {"verdict": "compute", "second": None, "likely": None}


def test_shares_are_what_is_gone_without_a_cause() -> None:
    times = {
        "baseline": [9.0, 11.0, 19.0, 21.0],  # a machine that becomes slower: each is compared with the slices around it
        "data": [6.0, 9.0, 12.0], "optimizer": [9.0, 13.5, 18.0], "oversubscribed": [12.0, 18.0, 24.0],
        "workers": [9.0, 13.5, 18.0], "larger": [9.0, 13.5, 18.0],  # the last with batches that cost nothing
    }  # fmt: skip
    assert shares(times, 4) == pytest.approx({"data": 0.4, "optimizer": 0.1, "oversubscribed": 0.1, "dispatch": 0.4, "work": 0.1})
    with_host = {
        "host": [8.0, 12.0, 16.0],
        "larger": [7.0, 10.5, 14.0],
    }  # 0.6 - 0.2 without both: 0.1 of the optimizer, 0.2 of calls
    assert shares(times | with_host, 4)["dispatch"] == pytest.approx(0.2)
    assert noise(times) == pytest.approx(0.0)
    assert noise(times | {"data": [6.0, 12.0, 15.0]}) == pytest.approx(2 * 1.25 * 1.4826 * 0.05 / 3**0.5)


def test_a_variant_that_ends_early_is_measured_by_its_other_rounds() -> None:
    times = {"baseline": [10.0] * 4, "optimizer": [9.0, 9.0, math.nan], "oversubscribed": [10.0] * 3, "data": [5.0] * 3}
    assert shares(times, 1)["optimizer"] == pytest.approx(0.1)
    with pytest.raises(RuntimeError, match="ended before it was measured 2 times: optimizer"):
        shares(times | {"optimizer": [9.0, math.nan, math.nan]}, 1)


@pytest.mark.parametrize(
    ("found", "causes"),
    [
        ({"data": 0.3, "optimizer": 0.1, "dispatch": 0.5, "work": 0.1}, {"dispatch"}),
        ({"data": 0.3, "optimizer": 0.2, "dispatch": 0.2, "work": 0.3}, {"data"}),
        ({"data": 0.2, "optimizer": 0.5, "dispatch": 0.1, "work": 0.2}, {"optimizer"}),
        ({"data": 0.0, "optimizer": 0.2, "dispatch": 0.3, "work": 0.5}, {"compute", "memory", "kernel", "dispatch"}),
        ({"data": 0.02, "optimizer": 0.1, "dispatch": 0.7, "work": 0.18}, {"dispatch"}),
        ({"data": 0.0, "optimizer": 0.6, "dispatch": 0.1, "work": 0.3}, {"optimizer"}),
        ({"data": 0.0, "optimizer": 0.1, "dispatch": 0.1, "work": 0.8}, {"compute", "memory", "kernel"}),
        ({"data": 0.0, "optimizer": 0.2, "work": 0.8}, {"compute", "memory", "kernel", "dispatch"}),
        ({"data": 0.11, "optimizer": 0.1, "dispatch": 0.7, "work": 0.09}, {"dispatch"}),
        ({"data": 0.11, "optimizer": 0.1, "dispatch": 0.1, "work": 0.69}, {"data", "compute", "memory", "kernel"}),
        ({"data": 0.0, "host": 0.5, "optimizer": 0.1, "dispatch": 0.3, "work": 0.1}, {"host"}),
        ({"data": 0.65, "optimizer": 0.1, "dispatch": 0.65, "work": 0.0}, {"data"}),  # calls are what data leaves of a step
    ],
)
def test_an_ablation_accepts_one_cause_unless_a_share_is_near_a_limit(found: dict[str, float], causes: set[str]) -> None:
    assert accepted(found) == causes


def test_as_many_batches_are_served_again_as_are_made_in_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few lines of text may be longer than others, and many images would take minutes."""
    seconds_each, made = 0.0, 0
    monkeypatch.setattr(ablation.time, "monotonic", lambda: 1 + made * seconds_each)

    @ablation._replayed
    def batch() -> int:
        nonlocal made
        made += 1
        return made

    assert [batch() for _ in range(200)][-64:] == list(range(9, 65)) + list(range(1, 9))
    seconds_each, made = 0.3, 0
    again = ablation._replayed(batch.__wrapped__)  # type: ignore[attr-defined]
    assert [again() for _ in range(10)] == [*range(1, 9), 1, 2]


@pytest.mark.slow
def test_an_ablation_finds_slow_data_and_not_the_optimizer(fetched: tuple[Recipe, Path], tmp_path: Path) -> None:
    recipe, files = fetched
    times = measure(recipe, files, tmp_path, seconds=0.3)
    found = shares(times, recipe.times)
    assert found["data"] > 0.5 > found["optimizer"]


@pytest.mark.parametrize("kept", [True, False])
def test_a_variant_keeps_the_memory_that_it_frees(kept: bool) -> None:
    """Otherwise each step may get its pages from the system again; without the call it does."""
    lines = [
        "import resource, numpy as np",
        "from benchmarks.verdicts.public.ablation import _keep_memory",
        "_keep_memory()" if kept else "",
        "faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt",
        "np.ones(8_000_000)",
        "before = faults()",
        "for _ in range(5): np.ones(8_000_000)",
        "print(faults() - before)",
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True, cwd=ROOT)
    assert (int(done.stdout) < 60) == kept


def test_what_an_ablation_has_started_ends_with_it(tmp_path: Path) -> None:
    code = (
        "import pathlib, time; from benchmarks.verdicts.forked import start_forked\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "print(start_forked(lambda: time.sleep(60), folder=folder, log=folder / 'log', environment={}), flush=True)\n"
        "time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        assert parent.stdout is not None
        child = Path("/proc") / parent.stdout.readline().strip()
        assert child.exists()
        time.sleep(0.3)  # until it has asked for that
        parent.kill()
    end = time.monotonic() + 10
    while child.exists() and time.monotonic() < end:
        time.sleep(0.02)
    assert not child.exists()
