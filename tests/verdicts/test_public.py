"""Recipes of public scripts: they are complete, files come from a git repository, and ablations find a planted cause."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from verdicts.public.ablation import measure, noise, shares
from verdicts.public.recipes import Recipe, Repository, fetch, read_recipes
from verdicts.public.results import judge
from verdicts.public.truth import accepted

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


@pytest.mark.promise("P17")
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


@pytest.mark.promise("P17")
@pytest.mark.slow
def test_an_ablation_finds_slow_data_and_not_the_optimizer(fetched: tuple[Recipe, Path], tmp_path: Path) -> None:
    recipe, files = fetched
    times = measure(recipe, files, tmp_path, seconds=0.3)
    found = shares(times, recipe.times)
    assert found["data"] > 0.5 > found["optimizer"]
