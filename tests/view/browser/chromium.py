"""A headless Chromium, driven over its own pipe: no driver, no port, nothing but the standard library.

`Browser` starts one process; `Page` is a tab of it. Every request a page makes, every exception, console error and
dialog is recorded, so a test can say that there was none. All waiting is for a condition, with a limit.
"""

import base64
import fcntl
import itertools
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

FLAGS: Final = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--mute-audio",
    "--no-first-run",
    "--no-default-browser-check",
    "--remote-debugging-pipe",
]
PATIENCE_S: Final = 120.0
SHORTEST_PAUSE_S: Final = 0.005
LONGEST_PAUSE_S: Final = 0.1
KEYS: Final = {
    "ArrowDown": ("ArrowDown", 40, ""),
    "End": ("End", 35, ""),
    "Enter": ("Enter", 13, "\r"),
    "Escape": ("Escape", 27, ""),
    "Tab": ("Tab", 9, ""),
}
LARGEST_READ: Final = 1 << 20
# Rows that are drawn only near the viewport (`content-visibility: auto`) have no text to be seen until a frame has
# decided that they are near: what was added before the first callback is drawn at the second.
DRAWN: Final = "await new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)));"
# The middle of an element that can be clicked there; null while it is away, covered, or on the move.
STANDING_STILL: Final = """async (find) => {
    const middle = (one) => {
        const box = one.getBoundingClientRect();
        return [box.x + box.width / 2, box.y + box.height / 2];
    };
    const frame = () => new Promise(requestAnimationFrame);
    const one = find();
    if (!one) return null;
    one.scrollIntoView({ block: "nearest" });
    await frame();
    const before = middle(one);
    await frame();
    await frame();
    const [x, y] = middle(one);
    if (find() !== one || x !== before[0] || y !== before[1]) return null;
    return one.contains(document.elementFromPoint(x, y)) ? [x, y] : null;
}"""


def find_chromium() -> str | None:
    """Where a Chromium is installed, if anywhere."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class BrowserError(RuntimeError):
    """The browser refused a command, or what was waited for did not happen."""


class Browser:
    """One browser process. Messages to it and from it are JSON, each ended by a NUL."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._numbers = itertools.count(1)
        self._unread = b""
        self._answers: dict[int, dict[str, Any]] = {}
        self._pages: dict[str, Page] = {}

    def call(
        self, method: str, parameters: dict[str, Any] | None = None, *, session: str | None = None
    ) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters or {}}
        if session:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE_S
        while number not in self._answers:
            self.listen(deadline - time.monotonic())
            if time.monotonic() > deadline:
                raise BrowserError(f"no answer to {method}")
        answer = self._answers.pop(number)
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error']['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    def listen(self, seconds: float) -> None:
        """Read what the browser has to say, waiting for it that long at most."""
        ready, _, _ = select.select([self._from], [], [], max(seconds, 0.0))
        if not ready:
            return
        data = os.read(self._from, LARGEST_READ)
        if not data:
            raise BrowserError("the browser is gone")
        *messages, self._unread = (self._unread + data).split(b"\0")
        for message in map(json.loads, messages):
            if "id" in message:
                self._answers[message["id"]] = message
            elif message.get("sessionId") in self._pages:
                self._pages[message["sessionId"]].note(message["method"], message["params"])

    def open(self) -> "Page":
        """A new, empty tab. A profile of its own would double what it costs; ``Page.close`` leaves nothing behind."""
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        page = self._pages[session] = Page(self, session, target)
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.call(f"{domain}.enable")
        return page


class Page:
    """A tab: goes places, types, clicks, looks, and remembers all that happened in it."""

    def __init__(self, browser: Browser, session: str, target: str) -> None:
        self._browser, self._session, self._target = browser, session, target
        self.requests: list[str] = []
        self.problems: list[str] = []
        self.refusals: list[str] = []
        self.dialogs: list[str] = []
        self._origins: set[str] = set()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command of the developer tools' protocol."""
        return self._browser.call(method, parameters, session=self._session)

    def note(self, method: str, event: dict[str, Any]) -> None:
        """Remember an event."""
        match method:
            case "Network.requestWillBeSent":
                self.requests.append(event["request"]["url"])
            case "Page.frameNavigated":
                self._origins.add(event["frame"]["securityOrigin"])
            case "Network.webSocketCreated":
                self.requests.append(event["url"])
            case "Runtime.exceptionThrown":
                details = event["exceptionDetails"]
                self.problems.append(details.get("exception", {}).get("description", details["text"]))
            case "Log.entryAdded" if event["entry"]["level"] == "error":
                # A refused filter is an answer like any other; what the page's policy had to stop is a problem.
                kept = self.refusals if event["entry"]["source"] == "network" else self.problems
                kept.append(f"{event['entry']['text']} {event['entry'].get('url', '')}")
            case "Page.javascriptDialogOpening":
                self.dialogs.append(event["message"])  # it stays open, and the page with it stands still

    def forget(self) -> None:
        """Start the records anew."""
        self.requests.clear()
        self.problems.clear()
        self.dialogs.clear()

    def close(self) -> None:
        """Close the tab and remove what its pages stored."""
        for origin in self._origins:
            self.call("Storage.clearDataForOrigin", origin=origin, storageTypes="all")
        self._browser.call("Target.closeTarget", {"targetId": self._target})

    # ---- going and looking ---------------------------------------------------------------------------------------

    def go(self, url: str) -> None:
        """Load an address anew, even if only its fragment differs from the present one."""
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'", f"{url} to load")

    def show(self, place: str) -> None:
        """Go to another place of the page without loading it anew, and wait until it is there."""
        self.evaluate(f"""(async () => {{
            const [before, told] = [location.href, new Promise((tell) => {{ window.onhashchange = tell; }})];
            location.hash = {json.dumps(f"#{place}")};
            if (location.href !== before) await told;
            {DRAWN}
        }})()""")
        self.wait(
            "document.querySelector('main') !== null && document.querySelector('[aria-busy=true]') === null", place
        )

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise BrowserError(details.get("exception", {}).get("description", details["text"]))
        return answer["result"].get("value")

    def until(self, holds: Callable[[], Any], what: str) -> Any:
        """Wait for something; its value when it is there."""
        deadline = time.monotonic() + PATIENCE_S
        pause = SHORTEST_PAUSE_S
        while not (value := holds()):
            if time.monotonic() > deadline:
                raise BrowserError(f"waited in vain for {what}; the page says: {self.text()[:1500]} {self.problems}")
            self._browser.listen(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)
        return value

    def wait(self, expression: str, what: str | None = None) -> Any:
        """Wait until an expression is true in the page. An exception counts as not yet."""
        return self.until(
            lambda: self.evaluate(f"(() => {{ try {{ return {expression} }} catch {{ return null }} }})()"),
            what or expression,
        )

    def see(self, text: str, selector: str = "body") -> None:
        """Wait until a text is to be seen."""
        self.wait(
            f"document.querySelector({json.dumps(selector)}).innerText.includes({json.dumps(text)})",
            f"{text!r} in {selector}",
        )

    def place(self) -> str:
        """What the address says after the hash, readable."""
        return str(self.evaluate("decodeURIComponent(location.hash).replaceAll('+', ' ')"))

    def look(self, *selectors: str) -> list[list[str]]:
        """The texts of all elements of each selector, as they are seen, all at one moment."""
        return list(
            self.evaluate(f"""(async () => {{
                {DRAWN}
                const texts = (selector) => [...document.querySelectorAll(selector)].map((one) => one.innerText);
                return {json.dumps(selectors)}.map(texts);
            }})()""")
        )

    def texts(self, selector: str) -> list[str]:
        """The texts of all such elements, as they are seen."""
        return self.look(selector)[0]

    def text(self, selector: str = "body") -> str:
        """The text of the first such element, as it is seen."""
        return next(iter(self.texts(selector)), "")

    def count(self, selector: str) -> int:
        """How many such elements there are."""
        return int(self.evaluate(f"document.querySelectorAll({json.dumps(selector)}).length"))

    # ---- acting --------------------------------------------------------------------------------------------------

    def click(self, selector: str, text: str = "") -> None:
        """Click the first such element with the mouse, at its middle, once it is there and stands still."""
        finds = f"(one) => (one.textContent ?? '').includes({json.dumps(text)})"
        found = f"() => [...document.querySelectorAll({json.dumps(selector)})].find({finds})"
        x, y = self.until(lambda: self.evaluate(f"({STANDING_STILL})({found})"), f"{selector} {text}")
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            button = "none" if kind == "mouseMoved" else "left"
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, clickCount=1)

    def press(self, key: str) -> None:
        """Press and release a key."""
        name, code, text = KEYS[key] if key in KEYS else (key, ord(key.upper()), key)
        self.call("Input.dispatchKeyEvent", type="keyDown", key=name, windowsVirtualKeyCode=code, text=text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=name, windowsVirtualKeyCode=code)

    def fill(self, selector: str, text: str) -> None:
        """Replace the text of a box and press Enter."""
        self.wait(f"document.querySelector({json.dumps(selector)}) !== null", selector)
        self.evaluate(f"((box) => {{ box.focus(); box.select(); }})(document.querySelector({json.dumps(selector)}))")
        self.call("Input.insertText", text=text)
        self.press("Enter")

    # ---- appearance ----------------------------------------------------------------------------------------------

    def resize(self, width: int, height: int, *, scale: float = 1) -> None:
        """The size of the window; narrow ones are those of a telephone."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 600,
        )

    def theme(self, name: str) -> None:
        """What the system prefers: light or dark."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def screenshot(self, path: Path) -> None:
        """A picture of the window."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def running(executable: str, *flags: str) -> Iterator[Browser]:
    """A browser with a fresh profile, ended and cleaned up afterwards."""
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        theirs_in, ours_out = _pipe()
        ours_in, theirs_out = _pipe()
        # The browser reads commands from descriptor 3 and answers on 4.
        actions = [
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_DUP2, theirs_in, 3),
            (os.POSIX_SPAWN_DUP2, theirs_out, 4),
        ]
        command = [executable, *FLAGS, *flags, f"--user-data-dir={profile}", "about:blank"]
        process = os.posix_spawn(executable, command, os.environ | {"HOME": profile}, file_actions=actions, setpgroup=0)
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            yield Browser(ours_out, ours_in)
        finally:
            os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)
            os.close(ours_out)
            os.close(ours_in)


def _pipe() -> tuple[int, int]:
    """The two ends of a pipe, on descriptors far from those that the browser gets."""
    ends = os.pipe()
    far = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 20) for end in ends]
    for end in ends:
        os.close(end)
    return far[0], far[1]
