"""The report in a real browser: what Chromium makes of it, at two widths, and that it asks for nothing."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from tests.diagnose.findings import on_cpu, on_gpu, with_texts, without_verdict
from tests.diagnose.markup import PAYLOADS, TAGS

from stoker.diagnose.report import make_environment, render

CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (the Debian package `chromium`)")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --no-first-run --hide-scrollbars --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()

SCRIPT = "<img src={}/leak><script>ran = true</script>"
FRAME = '<iframe id="{name}" src="/{name}" width="{width}" height="900"></iframe>'
PAGE = """<!doctype html><meta charset="utf-8"><body>{frames}<script>
window.onload = () => {{
  const seen = {{}};
  for (const frame of document.querySelectorAll("iframe")) {{
    const page = frame.contentDocument, root = page.documentElement;
    const colour = getComputedStyle(page.body).backgroundColor;
    seen[frame.id] = {{
      tags: [...new Set([...page.querySelectorAll("*")].map(one => one.localName))],
      wide: [...page.querySelectorAll("body *")].filter(one => one.getBoundingClientRect().right > root.clientWidth + 1).length,
      scrolls: root.scrollWidth - root.clientWidth,
      height: root.scrollHeight, title: page.title, colour: colour, ran: frame.contentWindow.ran === true,
    }};
  }}
  fetch("/seen", {{method: "POST", body: JSON.stringify(seen)}});
}};
</script>"""


@dataclass
class Site:
    """Pages by name, and every path that was asked for beside them."""

    address: str = ""
    pages: dict[str, str] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)
    seen: SimpleQueue[dict[str, Any]] = field(default_factory=SimpleQueue)
    """What the browser has sent."""


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = site.pages.get(self.path[1:])
            if page is None:
                site.asked.add(self.path)
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(page.encode())

        def do_POST(self) -> None:
            site.seen.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    site.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield site
    server.shutdown()
    thread.join()
    server.server_close()


def look(site: Site, tmp_path: Path, widths: dict[str, int], *more: str) -> dict[str, Any]:
    """What the browser sees in each page, shown in frames of some width.

    The page sends it, so that the test does not wait until Chromium ends by itself, as with `--dump-dom`.
    """
    site.pages["all"] = PAGE.format(frames="".join(FRAME.format(name=name, width=width) for name, width in widths.items()))
    command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={tmp_path}/profile", *more, f"{site.address}/all"]
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as browser:
        try:
            return site.seen.get(timeout=200)
        finally:
            browser.kill()


def test_chromium_sees_the_same_page_at_any_width_and_asks_for_nothing(site: Site, tmp_path: Path) -> None:
    attack = "".join(PAYLOADS[::17]).replace("http://x.example", site.address) + SCRIPT.format(site.address)
    findings = {"gpu": on_gpu(), "cpu": on_cpu(), "none": without_verdict(), "attack": with_texts(on_gpu(), attack)}
    findings["long"] = with_texts(on_gpu(), "x" * 500)  # a name without a place to break it
    for name, finding in findings.items():
        for width in (400, 1200):
            site.pages[f"{name}-{width}"] = render(finding, title=attack if name == "attack" else "train.py --epochs 1")
    seen = look(site, tmp_path, {name: int(name.rpartition("-")[2]) for name in list(site.pages)})
    for name, one in seen.items():
        assert set(one["tags"]) <= TAGS, name
        assert (one["wide"], one["scrolls"], one["ran"]) == (0, 0, False), (name, one)
    assert seen["gpu-400"]["title"] == "data-bound - train.py --epochs 1"
    assert seen["gpu-400"]["height"] > seen["gpu-1200"]["height"]
    assert site.asked <= {"/favicon.ico"}


def test_negative_control_without_escapes_a_page_is_broken_and_without_the_policy_a_script_runs(site: Site, tmp_path: Path) -> None:
    attacked = with_texts(on_gpu(), SCRIPT.format(site.address))
    page = render(attacked, title="t", environment=make_environment().overlay(autoescape=False))
    site.pages |= {"bare-400": page, "open-400": page.replace("http-equiv", "name")}
    seen = look(site, tmp_path, {"bare-400": 400})
    assert set(seen["bare-400"]["tags"]) - TAGS
    assert (seen["bare-400"]["ran"], site.asked - {"/favicon.ico"}) == (False, set())  # the policy holds where escapes do not
    assert look(site, tmp_path, {"open-400": 400})["open-400"]["ran"] is True
    assert "/leak" in site.asked
