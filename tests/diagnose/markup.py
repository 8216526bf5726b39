"""What a report may consist of, and what people have written to break out of pages."""

from __future__ import annotations

import itertools
from html.parser import HTMLParser

TAGS = set(
    "html head meta title style body header main footer section h1 h2 h3 p ul ol li div span strong code "
    "table thead tbody tr th td svg rect".split()
)
ATTRIBUTES = set("lang charset http-equiv content name class x y width height rx role aria-label aria-hidden".split())
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

_SCRIPTS = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)>",
    "<svg/onload=alert(1)//",
    "<iframe src=javascript:alert(1)></iframe>",
    "<a href='javascript:alert(1)'>x</a>",
    "<body onload=alert(1)>",
    "<link rel=stylesheet href=http://x.example/a.css>",
    "<meta http-equiv=refresh content='0;url=http://x.example'>",
    "<base href=http://x.example/>",
    "<form action=http://x.example><input type=submit>",
    "<object data=http://x.example></object>",
    "<style>@import 'http://x.example/a.css';</style>",
    "<math><mtext></p><style><!--</style><img src=x onerror=alert(1)>",
    "<details open ontoggle=alert(1)>",
    "<video><source onerror=alert(1)>",
    "<!--><img src=x onerror=alert(1)>-->",
    "<![CDATA[<img src=x onerror=alert(1)>]]>",
    "<?xml version='1.0'?><x/>",
    "<foreignObject><script>alert(1)</script></foreignObject>",
    "{{ 7 * 7 }}{% include 'x' %}{# x #}",
    "&lt;script&gt;&#60;b&#62;&#x3c;i&#x3e;",
    "%3Cscript%3Ealert(1)%3C/script%3E",
    "data:text/html,<script>alert(1)</script>",
    "url(http://x.example/a.png)",
]
_BREAKS = [
    "",
    '">',
    "'>",
    "\"'>",
    "</title>",
    "</style>",
    "</svg>",
    "</code></td></table>",
    "-->",
    "]]>",
    "\n",
    "\x00",
    "\u2028",
    '" onmouseover="alert(1)',
    "' x='",
    "\ud800",
    "`",
    "\\",
    "</",
    "\u202e",
]

PAYLOADS = [opening + script for script, opening in itertools.product(_SCRIPTS, _BREAKS)]
"""500 texts, each of which would be markup somewhere."""


class Markup(HTMLParser):
    """What a page consists of."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.values: list[str] = []
        self.texts: list[str] = []
        self.others: list[str] = []
        self.count = 0
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count += 1
        self.tags.add(tag)
        for name, value in attrs:
            self.attributes.add(name)
            self.values.append(value or "")

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        self.others.append(data)

    def handle_pi(self, data: str) -> None:
        self.others.append(data)

    def unknown_decl(self, data: str) -> None:
        self.others.append(data)

    @property
    def foreign(self) -> list[str]:
        """Everything that a report may not have."""
        return [*sorted(self.tags - TAGS), *sorted(self.attributes - ATTRIBUTES), *self.others]
