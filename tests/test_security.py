"""What SECURITY.md says of the network, of code in data, and of URLs holds for the sources and for commands that run."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.calling import environment
from tests.cli.training_folder import make_folder

ROOT = Path(__file__).parents[1]
SOURCES = {path: path.relative_to(ROOT / "packages").as_posix() for path in sorted((ROOT / "packages").rglob("src/**/*.py"))}
TEXT = " ".join((ROOT / "SECURITY.md").read_text().split())

NETWORK = (
    "aiohttp asyncio boto3 botocore fsspec ftplib grpc http http.client http.server httpx huggingface_hub obstore ray requests smtplib "
    "socket socketserver ssl telnetlib tensorboard torch.utils.tensorboard urllib.request urllib3 wandb websockets xmlrpc"
).split()
REACHES = {
    "object_storage.py": ({"obstore", "fsspec"}, "URLs of object storage"),
    "ray.py": ({"ray"}, "training or packing on several machines (torch.distributed, Ray)"),
    "discover.py": ({"ray"}, "training or packing on several machines (torch.distributed, Ray)"),
    "on_ray.py": ({"ray"}, "training or packing on several machines (torch.distributed, Ray)"),
    "server.py": ({"http", "http.server"}, "the page of `stoker live` (on this machine unless you name another address)"),
    "loggers.py": ({"torch.utils.tensorboard", "wandb"}, "loggers of other packages"),
}
"""Modules that import a library of the network, and what SECURITY.md calls their use."""
LOCAL = {"socketpair", "socket", "AF_UNIX", "SOCK_SEQPACKET", "send_fds", "recv_fds", "gethostname"}
"""What other modules may use of `socket`: pairs of sockets between processes of this machine."""

RUNS_CODE = {
    "eval", "exec", "run_path", "run_module", "exec_module", "entry_points", "loads", "load", "Unpickler", "system",
}  # fmt: skip
MAY_RUN = {
    "stoker/src/stoker/compare/child.py": {"runpy.run_path", "runpy.run_module"},
    "stoker/src/stoker/diagnose/rewriting.py": {"loader.exec_module", "super().exec_module"},
    "stoker/src/stoker/watch/script.py": {"loader.exec_module"},
    "stoker/src/stoker/experiment/models.py": {"spec.loader.exec_module"},
    "stoker/src/stoker/extend.py": {"entry_points"},
    "stoker/src/stoker/compare/checkpoint.py": {"torch.load"},
}
"""Where code of the user (a script, a model), of an installed package, or a checkpoint of tensors is loaded."""


def imports(tree: ast.AST) -> Iterator[str]:
    """The modules that a source imports, also by `import_extra` with its name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module or ""
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("import_extra", "import_module") and node.args:
            yield from (part.value for part in node.args if isinstance(part, ast.Constant) and isinstance(part.value, str))


def reached(tree: ast.AST) -> set[str]:
    """Libraries of the network that a source imports; `socket` only where more of it is used than between processes of this machine."""
    libraries = {name for name in imports(tree) if name in NETWORK or name.partition(".")[0] in set(NETWORK) - {"http", "torch"}}
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "socket"}
    return {name.partition(".")[0] if name.startswith("ray.") else name for name in libraries if name != "socket" or used - LOCAL}


def code_calls(tree: ast.AST) -> set[str]:
    """Calls that run code of a text or a file, or read a pickle."""
    calls = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        function = ast.unparse(node.func)
        owner, _, name = function.rpartition(".")
        options = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        is_pickle = owner.rpartition(".")[2] in ("pickle", "marshal", "dill", "cloudpickle", "joblib", "torch", "np", "numpy")
        if name not in RUNS_CODE or (name in ("load", "loads") and not is_pickle) or (name in ("eval",) and owner):
            continue  # json.loads, tomllib.load, safetensors; model.eval()
        if (owner in ("np", "numpy") and options.get("allow_pickle", "False") == "False") or (name == "system" and owner != "os"):
            continue
        calls.add(function if function != "torch.load" or options.get("weights_only") == "True" else "torch.load of pickles")
    return calls


def test_only_what_the_page_names_can_reach_a_network() -> None:
    trees = {name: ast.parse(path.read_text()) for path, name in SOURCES.items()}
    assert len(trees) > 300
    found = {name: libraries for name, tree in trees.items() if (libraries := reached(tree))}
    assert {Path(name).name: libraries for name, libraries in found.items()} == {
        name: libraries for name, (libraries, _) in REACHES.items()
    }
    for _, sentence in REACHES.values():
        assert sentence in TEXT
    assert "sends no telemetry" in TEXT
    assert not re.search(r"URLs are refused|uses no network", TEXT), "it takes URLs of object storage"


def test_only_trusted_code_is_run_and_no_pickle_is_read() -> None:
    found = {name: calls for path, name in SOURCES.items() if (calls := code_calls(ast.parse(path.read_text())))}
    assert found == MAY_RUN
    assert "evaluates no text as code" in TEXT
    assert "`torch.load(weights_only=True)`" in TEXT


@pytest.mark.parametrize(
    ("source", "libraries", "calls"),
    [
        ("import requests", {"requests"}, set()),
        ("from urllib.request import urlopen", {"urllib.request"}, set()),
        ("import socket\nsocket.create_connection(('a', 1))", {"socket"}, set()),
        ("import socket\nsocket.socketpair()\nimport urllib.parse", set(), set()),
        ("eval(text)\nmodel.eval()\njson.loads(text)", set(), {"eval"}),
        ("import pickle\npickle.load(file)", set(), {"pickle.load"}),
        ("torch.load(file)", set(), {"torch.load of pickles"}),
        ("np.load(file, allow_pickle=True)\nnp.load(other)", set(), {"np.load"}),
        ("os.system('x')", set(), {"os.system"}),
    ],
)
def test_negative_control_other_sources_are_recognised(source: str, libraries: set[str], calls: set[str]) -> None:
    tree = ast.parse(source)
    assert reached(tree) == libraries
    assert code_calls(tree) == calls


WATCHED = """
import contextlib, json, sys, urllib.request
seen = []
events = ("socket.connect", "socket.getaddrinfo", "socket.sendto", "urllib.Request", "http.client.connect")
sys.addaudithook(lambda event, arguments: seen.append(event) if event in events else None)
from stoker.cli.main import main
for command in json.loads(sys.argv[1]):
    try:
        main(command)
    except SystemExit as end:
        assert not end.code, end.code
local = list(seen)
with contextlib.suppress(OSError):
    urllib.request.urlopen("http://127.0.0.1:9")
print("SEEN", json.dumps([local, seen, sorted({"obstore", "fsspec", "ray", "wandb", "requests"} & set(sys.modules))]))
"""


def test_local_work_contacts_nothing(tmp_path: Path) -> None:
    """Training, a prediction and an inspection of local files open no connection; a request at the end is the control."""
    make_folder(tmp_path)
    commands = [
        ["train", "c.yaml", "-q", "--set", "epochs=1", "--set", "folder=run"],
        ["predict", "run", "--data", "waves.stoker", "-q"],
        ["inspect", "waves.stoker", "--verify"],
        ["runs", "."],
    ]
    words = [sys.executable, "-c", WATCHED, json.dumps(commands)]
    done = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    seen, with_control, libraries = json.loads(done.stdout.partition("SEEN ")[2])
    assert (seen, libraries) == ([], [])
    assert "urllib.Request" in with_control
