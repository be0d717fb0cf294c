"""Rollouts hold whatever a model wrote: nothing of it runs, and nothing is asked of any other host."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

# Elements and attributes that could act; the page itself has none of them below #app.
ACTING = (
    "script, iframe, object, embed, form, style, link, meta, base, video, audio, noscript, template, "
    "svg use, svg image, .prose [style], .prose [id]"
)
UNSAFE = f"""(() => {{
    const root = document.getElementById("app");
    const found = [...root.querySelectorAll({json.dumps(ACTING)})].map((one) => one.outerHTML);
    for (const one of root.querySelectorAll("*")) {{
        for (const {{ name, value }} of one.attributes) {{
            const link = name === "href" && !/^(#|http:|https:|mailto:)/.test(value);
            const source = name === "src" && !value.startsWith("data:image/png;base64,");
            const acting = /^on/.test(name) || ["srcset", "ping"].includes(name);
            if (acting || link || source) found.push(one.outerHTML.slice(0, 300));
        }}
    }}
    return found;
}})()"""
PRESS = "(text) => [...document.querySelectorAll('.button')].find((one) => one.innerText === text).click()"
LONG = 130_000
# Between the factors of linear (4) and quadratic (16) work on four times as much text.
MAX_GROWTH = 9
# What costs less is not worth comparing: quadratic work on that much text costs many seconds.
NOTICEABLE_S = 1.0
TAKEN = "window.taken ?? ({}).taken ?? null"


@pytest.fixture(scope="module")
def corpus(load_beside: Callable[[str], ModuleType]) -> ModuleType:
    return load_beside("hostile")


@pytest.fixture(scope="module")
def files(corpus: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "<img src=x onerror=alert(1)>.jsonl"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in corpus.records()))
    sidecar = path.with_name(f"{path.stem}_failures.jsonl")
    sidecar.write_text("".join(f"{json.dumps(record)}\n" for record in corpus.failures()))
    return path


@pytest.fixture(scope="module")
def address(files: Path, serve: Any) -> str:
    return str(serve(files))


def harmless(page: Any, origin: str) -> None:
    """Nothing ran, nothing was asked of elsewhere, and not even the page's policy had to step in."""
    assert page.evaluate(UNSAFE) == []
    assert page.evaluate(TAKEN) is None
    assert page.problems == []
    assert page.dialogs == []
    foreign = [url for url in page.requests if not url.startswith((origin, "about:blank", "data:image/png", "data:,"))]
    assert foreign == []


def open_everything(page: Any, rollout: str) -> None:
    """Go to a rollout and unfold all of it, rendered and as it was written."""
    page.evaluate(f"location.hash = '#view=table&rollout={rollout}'")
    page.wait(f"document.querySelector('main').dataset.id === '{rollout}'")
    page.evaluate("for (const one of document.querySelectorAll('.long-field > button')) one.click()")
    if page.count(".transcript") == 0:
        return
    for button in ("Unfold all", "Rendered", "Rendered"):
        page.evaluate(f"({PRESS})({json.dumps(button)})")
        page.wait("document.querySelectorAll('.lazy').length === 0")


def test_what_would_run_would_be_noticed(browser: Any, corpus: ModuleType, tmp_path: Path) -> None:
    """The other tests say that nothing was seen; this one says that they would see it."""
    trap = tmp_path / "trap.html"
    trap.write_text(f"<div id=app><img src='{corpus.HOST}/a.png' onerror='window.taken=1'><script>1</script></div>")
    tab = browser.open()
    tab.go(trap.as_uri())
    tab.wait(TAKEN)
    assert len(tab.evaluate(UNSAFE)) == 3
    assert f"{corpus.HOST}/a.png" in tab.requests
    tab.call("Runtime.evaluate", expression="setTimeout(() => alert('here'))")
    tab.until(lambda: tab.dialogs, "a dialog")
    tab.close()


def test_nothing_runs_in_any_transcript(page: Any, address: str, corpus: ModuleType) -> None:
    page.go(f"{address}#view=table")
    page.wait("document.querySelector('main') !== null")
    for number, _ in enumerate(corpus.records()):
        open_everything(page, f"0.{number}")
        harmless(page, address)


def test_nothing_runs_in_the_other_parts_of_a_rollout(page: Any, address: str, corpus: ModuleType) -> None:
    page.go(f"{address}#view=table")
    for number in range(0, len(corpus.PAYLOADS), 3):
        for tab in ("tokens", "timing", "raw"):
            page.show(f"view=table&rollout=0.{number}&tab={tab}")
            page.wait("document.querySelector('.tokens, .waterfall, .raw') !== null")
    for number in range(len(corpus.MARKUP)):
        open_everything(page, f"0.f{number}")
    harmless(page, address)


def test_nothing_runs_in_lists_and_charts(page: Any, address: str) -> None:
    page.go(address)
    page.see("Mean reward")
    page.wait("document.querySelector('.bars') !== null")
    harmless(page, address)
    told = page.evaluate("fetch('api/columns').then((answer) => answer.json())")
    with_all = ",".join(column["name"] for column in told["columns"])
    page.evaluate(f"location.hash = '#' + new URLSearchParams({{view: 'table', columns: {json.dumps(with_all)}}})")
    page.wait("document.querySelectorAll('a.row').length > 0")
    page.press("?")
    page.wait("document.querySelector('dialog[open]') !== null")
    page.press("Escape")
    harmless(page, address)
    for by in ("task", "agent", "failure", "file"):
        page.evaluate(f"location.hash = '#view=groups&by={by}'")
        page.wait(f"document.querySelector('.group-list[data-by={by}] .group') !== null")
    harmless(page, address)
    page.evaluate("location.hash = '#view=compare&a=0.0&b=0.1'")
    page.wait("document.querySelectorAll('.pair.heads h1').length === 2")
    harmless(page, address)


def test_hostile_addresses_do_nothing(page: Any, address: str) -> None:
    page.go(address)
    for part in ("view", "filter", "search", "sort", "columns", "by", "order", "rollout", "tab", "a", "x"):
        page.show(f"view=table&{part}=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E")
    harmless(page, address)


def test_model_text_is_shown_as_it_is_and_not_swallowed(page: Any, address: str, corpus: ModuleType) -> None:
    page.go(f"{address}#view=table&rollout=0.0")
    page.see(corpus.PAYLOADS[0], ".transcript")
    assert page.count(".picture img") == 1  # the one that needs no request
    assert page.evaluate("document.querySelector('.picture img').naturalWidth") == 1


def test_an_exported_page_is_as_safe(page: Any, files: Path, export: Any, corpus: ModuleType, tmp_path: Path) -> None:
    path = export(tmp_path / "page.html", files)
    page.go(f"{path.as_uri()}#view=table")
    page.wait("document.querySelectorAll('a.row').length > 0")
    for number in range(len(corpus.PAYLOADS)):
        open_everything(page, f"0.{number}")
    harmless(page, path.as_uri())


@pytest.mark.parametrize("sign", ["\\(", "[", "> "])
def test_a_long_text_of_signs_does_not_freeze_the_page(
    page: Any, serve: Any, make: ModuleType, tmp_path: Path, sign: str
) -> None:
    path = tmp_path / "long.jsonl"
    make.write_run(path, tasks=1, repeats=1)
    record = json.loads(path.read_text())
    with path.open("w") as file:
        for repeat, length in enumerate((LONG // 4, LONG)):
            said = {"role": "assistant", "content": f"{sign * (length // len(sign))}\n\nthe **end**"}
            file.write(json.dumps(record | {"_ng_rollout_index": repeat, "response": {"output": [said]}}) + "\n")
    address = serve(path)
    page.call("Performance.enable")
    shorter, longer = (cost_of_all(page, f"{address}#rollout=0.{repeat}") for repeat in range(2))
    assert longer < max(NOTICEABLE_S, MAX_GROWTH * shorter)


def cost_of_all(page: Any, place: str) -> float:
    """CPU seconds in which the page shows all of a text that it has cut short."""
    page.go(place)
    page.wait("document.querySelector('button.fold-toggle') !== null")
    before = cpu_seconds(page)
    page.click("button.fold-toggle", "Show all")
    page.wait("[...document.querySelectorAll('.prose strong')].some((one) => one.textContent === 'end')")
    return cpu_seconds(page) - before


def cpu_seconds(page: Any) -> float:
    metrics = page.call("Performance.getMetrics")["metrics"]
    return float(next(metric["value"] for metric in metrics if metric["name"] == "ThreadTime"))


def test_code_that_is_cut_into_pieces_stays_code(page: Any, serve: Any, make: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "code.jsonl"
    make.write_run(path, tasks=1, repeats=1)
    record = json.loads(path.read_text())
    code = "\n".join(f"*line* {number}" for number in range(2000))
    said = {"role": "assistant", "content": f"Before\n\n```python\n{code}\n```\n\n*after*"}
    path.write_text(json.dumps(record | {"response": {"output": [said]}}) + "\n")
    page.go(f"{serve(path)}#rollout=0.0")
    page.click("button.fold-toggle", "Show all")
    page.wait("document.querySelector('.prose em')?.textContent === 'after'")
    shown = page.evaluate(
        "[...document.querySelectorAll('.prose pre')].map((one) => one.textContent.trim()).join('\\n')"
    )
    assert shown.splitlines() == code.splitlines()
