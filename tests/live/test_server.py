"""The live page over HTTP: who may read it, what it sends, and what a browser shows of it."""

from __future__ import annotations

import asyncio
import http.client
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from stoker.live import server as module
from stoker.live.server import Server, page, save_page
from stoker.train.run import Run

HOSTILE = "<img src=x onerror=alert(1)></script>"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name, lr in (("first", 0.1), ("second", 0.2)):
        run = Run(tmp_path / "runs" / name, config={"lr": lr, "note": HOSTILE})
        for step in range(1, 6):
            run.metrics.write(10 * step, {"loss": 1 / step, "val_loss": 2 / step, "rate": 50.0, "wait": 0.5, "memory": 2.0**31})
        run.end("finished", step=50)
    return tmp_path / "runs"


@pytest.fixture
def server(runs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(module, "POLL_SECONDS", 0.02)
    made = Server(runs)
    made.start()
    yield made
    made.close()


def get(server: Server, path: str, host: str | None = None, method: str = "GET") -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request(method, path, headers={"Host": host} if host else {})
        answer = connection.getresponse()
        return answer.status, dict(answer.headers), answer.read().decode()
    finally:
        connection.close()


def query(server: Server) -> str:
    return urlsplit(server.address).query


class Stream:
    """The events of one page."""

    def __init__(self, server: Server, *selected: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        self._connection.request("GET", f"/events?{query(server)}" + "".join(f"&run={name}" for name in selected))
        self.answer = self._connection.getresponse()

    def next(self) -> Any:
        while line := self.answer.fp.readline():
            if line.startswith(b"event: end"):
                return "end"
            if line.startswith(b"data: "):
                return json.loads(line[6:])
        raise AssertionError("the stream ended without its last event")

    def close(self) -> None:
        self.answer.close()
        self._connection.close()


def test_the_page_needs_the_token_and_this_machine(server: Server) -> None:
    status, headers, text = get(server, f"/?{query(server)}")
    assert status == 200
    assert "<title>Stoker runs</title>" in text
    assert headers["Cache-Control"] == "no-store"
    for path in ("/", "/?token=", "/?token=guess", "/events", "/events?token=guess"):
        status, _, text = get(server, path)
        assert (status, text) == (403, "Open the address that `stoker live` printed: it holds a token.\n")
    assert get(server, f"/?{query(server)}", host="evil.example")[0] == 403  # a name that leads to 127.0.0.1
    assert get(server, f"/?{query(server)}", host=f"localhost:{server.port}")[0] == 200
    assert get(server, f"/other?{query(server)}")[0] == 404
    assert get(server, f"/?{query(server)}", method="POST")[0] == 501


def test_the_page_loads_nothing_from_elsewhere() -> None:
    text = page()
    assert "default-src 'none'" in text
    assert "connect-src 'self'" in text
    assert "connect-src 'none'" in page({"runs": []})
    outside = text.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")  # the name of SVG, which nothing loads
    assert "http" not in outside
    assert "eval(" not in text
    assert "innerHTML" not in text


def test_the_policy_has_the_hashes_of_what_it_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: another script has another hash."""
    assert module._policy("a", "b", connects=True) != module._policy("a", "c", connects=True)
    policy = page().partition('Content-Security-Policy" content="')[2].partition('"')[0]
    text = page()
    style = text.partition("<style>")[2].partition("</style>")[0]
    script = text.rpartition("<script>")[2].partition("</script>")[0]
    assert policy == module._policy(style, script, connects=True)


def test_changes_are_sent_as_they_come(server: Server, runs: Path) -> None:
    stream = Stream(server, "first", "second")
    view = stream.next()
    assert [run["name"] for run in view["runs"]] == ["second", "first"]
    assert view["details"].keys() == {"first", "second"}
    assert view["details"]["first"]["curves"]["loss"]["steps"] == [10, 20, 30, 40, 50]
    run = Run(runs / "third")
    run.metrics.write(1, {"loss": 9.0})
    third: dict[str, Any] = {}
    while (third.get("state"), third.get("loss")) != ("running", 9.0):
        third = next((row for row in stream.next()["runs"] if row["name"] == "third"), {})
    run.end("finished")
    stream.close()


def test_a_saved_page_holds_the_runs_and_no_text_of_them_ends_an_element(runs: Path, tmp_path: Path) -> None:
    assert save_page(runs, tmp_path / "page.html") == 2
    text = (tmp_path / "page.html").read_text()
    known = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    assert known["details"]["first"]["facts"]["note"] == HOSTILE
    assert HOSTILE not in text


CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --remote-debugging-port=0"
).split()


def shown(address: str, folder: Path, *, until: str) -> str:
    """The page as Chromium has it, as soon as it has a text."""
    with subprocess.Popen([str(CHROMIUM), *FLAGS, f"--user-data-dir={folder}", address], stderr=subprocess.DEVNULL) as browser:
        try:
            return asyncio.run(_read_page(folder / "DevToolsActivePort", until))
        finally:
            browser.kill()


async def _read_page(port_file: Path, until: str) -> str:
    aiohttp = pytest.importorskip("aiohttp")
    async with asyncio.timeout(120), aiohttp.ClientSession() as session:
        while not (port_file.exists() and port_file.read_text()):
            await asyncio.sleep(0.1)
        port = port_file.read_text().split()[0]
        pages: list[str] = []
        while not pages:
            async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                pages = [one["webSocketDebuggerUrl"] for one in await answer.json() if one["type"] == "page"]
        async with session.ws_connect(pages[0], max_msg_size=0) as socket:
            html = ""
            while until not in html:
                asked = {"id": 1, "method": "Runtime.evaluate", "params": {"expression": "document.documentElement.outerHTML"}}
                await socket.send_json(asked)
                html = (await socket.receive_json())["result"]["result"].get("value", "")  # nothing while it loads
                await asyncio.sleep(0.1)
            return html


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
@pytest.mark.parametrize("is_saved", [False, True])
def test_chromium_shows_the_runs(server: Server, runs: Path, tmp_path: Path, is_saved: bool) -> None:
    save_page(runs, tmp_path / "page.html")
    address, until = ((tmp_path / "page.html").as_uri(), ">saved 20") if is_saved else (server.address, ">live<")
    page = shown(address, tmp_path / "profile", until=until)
    body = page.partition("<body>")[2].partition("<script")[0]
    for text in ("second", "first", "finished", "2.0 GiB", "50 %", "0.4 val_loss", "training loss"):
        assert text in body
    assert body.count('class="curve"') == (10 if is_saved else 5)  # five panels of both runs, or of the newest one
    assert "<img" not in body
    assert ("What differs" in body) == is_saved


def test_the_icon_is_not_blocked_by_the_policy_of_the_page() -> None:
    policy = page().partition('http-equiv="Content-Security-Policy" content="')[2].partition('"')[0]
    assert "img-src data:;" in policy
    assert 'rel="icon" href="data:' in page()


def test_head_is_answered_like_get_without_a_body(server: Server) -> None:
    status, headers, body = get(server, f"/?{query(server)}", method="HEAD")
    assert (status, body) == (200, "")
    assert headers["Content-Length"] == get(server, f"/?{query(server)}")[1]["Content-Length"]
    assert get(server, "/", method="HEAD")[0] == 403
    assert get(server, f"/events?{query(server)}", method="HEAD")[0] == 405
