"""The page: the HTML that the server sends, and the same as one file with its styles, scripts and data inside.

What the program and the page must agree on is decided in Python. Constants are written into the page as a block of JSON
(``shared_constants``), which ``static/shared.js`` reads. What both compute (filters, search, order, statistics) is
compared by a test over generated rollouts and queries.

The file is as safe as the server's replies: a policy in its head allows exactly the scripts and styles that were put
in, by their hashes, and nothing else. Our modules are joined into one script, which works because they follow a
convention: imports are relative, one to a line, without renaming, and top-level names are unique.
"""

import base64
import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import orjson

from nemo_gym.errors import ConfigError
from nemo_gym.filters import parser
from nemo_gym.filters.columns import LONGEST_TEXT, PREVIEWS
from nemo_gym.filters.syntax import WORDS
from nemo_gym.io.terminal_text import CONTROL
from nemo_gym.metrics.pass_at_k import MOST_K, MOST_TASKS
from nemo_gym.schemas.record import BOOKKEEPING_PREFIX, NEVER_METRICS, REWARD
from nemo_gym.steps.rollout_steps import COMPLETED, KINDS
from nemo_gym.view import groups, overview
from nemo_gym.view.index import search
from nemo_gym.view.listing import MOST_POINTS, PAGE_ROWS
from nemo_gym.view.rollout import CHANGE_ORDERS, INCIDENTAL, MOST_IN_GROUP, PAIRINGS
from nemo_gym.view.rollout_files import SORTED_BY

STATIC: Final = Path(__file__).parent / "static"
_SCRIPT: Final = re.compile(r'<script(?P<attributes>[^>]*?)\ssrc="(?P<file>[^"]+)"(?P<more>[^>]*)></script>')
_STYLE: Final = re.compile(r'<link\s[^>]*?rel="stylesheet"[^>]*?href="(?P<file>[^"]+)"[^>]*>')
_IMPORT: Final = re.compile(r'^import .*?from "\./(?P<file>[\w./-]+)";$', re.MULTILINE)
_EXPORT: Final = re.compile(r"^export ", re.MULTILINE)
_BLANKS: Final = "".join(filter(str.isspace, map(chr, range(0x10000))))


def shared_constants() -> dict[str, Any]:
    """What the page's scripts must not define again."""
    return {
        "blanks": _BLANKS,
        "control": CONTROL.pattern,
        "page_rows": PAGE_ROWS,
        "completed": COMPLETED,
        "step_kinds": KINDS,
        "filter": _filter_constants(),
        "search": {
            "not_text": sorted(search.NOT_TEXT),
            "longest": search.LONGEST_TEXT,
            "most_phrases": search.MOST_PHRASES,
            "around": search.AROUND,
        },
        "record": {
            "bookkeeping": BOOKKEEPING_PREFIX,
            "not_fields": sorted({*NEVER_METRICS, REWARD}),
            "incidental": sorted(INCIDENTAL),
            "longest_field": LONGEST_TEXT,
        },
        "groups": {
            "by": groups.BY,
            "unnamed": groups.UNNAMED,
            "most_members": groups.MOST_MEMBERS,
            "most_in_one": MOST_IN_GROUP,
        },
        "statistics": {
            "most_k": MOST_K,
            "most_tasks": MOST_TASKS,
            "bins": overview.BINS,
            "rate_bins": overview.RATE_BINS,
            "digits": overview.DIGITS,
            "most_agents": overview.MOST_AGENTS,
            "most_points": MOST_POINTS,
        },
        "compare": {"orders": CHANGE_ORDERS, "pairings": PAIRINGS},
        "sort": {"previews": PREVIEWS, "preview_length": SORTED_BY},
    }


def _filter_constants() -> dict[str, Any]:
    return {
        "longest": parser.LONGEST,
        "deepest": parser.DEEPEST,
        "most_terms": parser.MOST_TERMS,
        "words": sorted(WORDS - parser.CONSTANTS.keys()),
        "constants": parser.CONSTANTS,
        "escapes": parser.ESCAPES,
        "foreign": parser.FOREIGN,
        "hints": parser.HINTS,
    }


def page_html(static: Path = STATIC) -> str:
    """The page as the server sends it."""
    try:
        page = (static / "index.html").read_text("utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{static}: the viewer's page is not installed", hint="install rollout-gym again") from None
    return _with_block(page, "rollout-gym-shared", orjson.dumps(shared_constants()))


def build_page(static: Path, data: bytes) -> bytes:
    """The page with everything that it refers to, and the data, embedded."""
    page = page_html(static)
    scripts: list[str] = []
    styles: list[str] = []
    page = _STYLE.sub(lambda found: _put_in(found, "style", static, styles), page)
    page = _SCRIPT.sub(lambda found: _put_in(found, "script", static, scripts), page)
    # Last, because it names the hash of everything that is embedded.
    policy = _policy(scripts, styles)
    head = f'<head>\n<meta http-equiv="Content-Security-Policy" content="{policy}">'
    return _with_block(page.replace("<head>", head, 1), "rollout-gym-data", data).encode()


def _put_in(found: re.Match[str], tag: str, static: Path, contents: list[str]) -> str:
    file = static / found["file"].partition("?")[0]
    attributes = (found.groupdict().get("attributes") or "") + (found.groupdict().get("more") or "")
    module = 'type="module"' in attributes
    text = bundle(file) if module else file.read_text("utf-8")
    text = re.sub(rf"</({tag})", r"<\\/\1", text, flags=re.IGNORECASE)
    contents.append(text)
    opening = f'<{tag} type="module">' if module else f"<{tag}>"
    return f"{opening}{text}</{tag}>"


def bundle(entry: Path) -> str:
    """A module with all that it imports, each once and before it is needed."""
    done: dict[Path, str] = {}

    def add(file: Path) -> None:
        text = file.read_text("utf-8")
        done[file] = ""  # holds the place of a module that is imported in a circle
        for found in _IMPORT.finditer(text):
            needed = (file.parent / found["file"]).resolve()
            if needed not in done:
                add(needed)
        del done[file]  # and add it again, so that it comes after what it imports
        done[file] = _EXPORT.sub("", _IMPORT.sub("", text))

    add(entry.resolve())
    return "\n".join(done.values())


def _policy(scripts: list[str], styles: list[str]) -> str:
    hashes: Callable[[list[str]], str] = lambda texts: " ".join(map(_hash, texts)) or "'none'"  # noqa: E731
    return (
        f"default-src 'none'; script-src {hashes(scripts)}; style-src {hashes(styles)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _with_block(page: str, name: str, data: bytes) -> str:
    """The page with a block of JSON at its end."""
    # Only "<" could end a script element early, and JSON has another spelling for it.
    content = data.decode().replace("<", "\\u003c")
    element = f'<script type="application/json" id="{name}">{content}</script>'
    head, found, tail = page.rpartition("</body>")
    return f"{head}{element}\n{found}{tail}" if found else f"{page}\n{element}"
