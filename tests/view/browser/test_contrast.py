"""Text can be read: at least 4.5 to 1 against what is behind it, in both themes and on every view."""

from typing import Any

import pytest

LEAST = 4.5
# The lowest contrast of every piece of text on the page. Colours are painted to read them: computed styles may be
# mixtures that only the browser can resolve.
TEXTS = """(() => {
    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const known = new Map();
    const rgba = (colour) => {
        if (!known.has(colour)) {
            canvas.clearRect(0, 0, 1, 1);
            canvas.fillStyle = colour;
            canvas.fillRect(0, 0, 1, 1);
            const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
            known.set(colour, [r, g, b, a / 255]);
        }
        return known.get(colour);
    };
    const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
    const light = ([r, g, b]) => {
        const part = (value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
        return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
    };
    const grounds = new Map([[null, [255, 255, 255, 1]]]);
    const behind = (element) => {
        if (!grounds.has(element)) {
            const own = rgba(getComputedStyle(element).backgroundColor);
            grounds.set(element, over(own, behind(element.parentElement)));
        }
        return grounds.get(element);
    };
    const found = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const element = walker.currentNode.parentElement;
        const style = getComputedStyle(element);
        if (!walker.currentNode.data.trim() || !element.checkVisibility() || element.closest(".disabled, noscript"))
            continue;
        const back = behind(element);
        const ink = over(rgba(element.closest("svg") ? style.fill : style.color), back);
        const [high, low] = [light(ink), light(back)].sort((one, other) => other - one);
        found.push([(high + 0.05) / (low + 0.05), `${element.className} ${walker.currentNode.data.slice(0, 40)}`]);
    }
    return found;
})()"""


REWARDS = """(() => {
    for (let share = 0; share <= 1; share += 0.05) {
        const one = document.createElement("span");
        one.className = "reward";
        one.style.setProperty("--share", share);
        one.append(`share ${share.toFixed(2)}`);
        document.body.append(one);
    }
})()"""
PLACES = {
    "view=overview": ".chart text",
    "view=table": "a.row",
    "view=table&search=rectangle": "a.row mark",
    "view=groups": ".group .chip",
    "view=groups&by=agent": ".group",
    "rollout=0.0": ".transcript",
    "rollout=0.f0": "main h1",
    "view=timing": ".share-list li",
    "rollout=0.0&tab=timing": ".step-line",
}
PLACES_OF_TWO = {"view=compare": ".run-task", "view=compare&a=0.0&b=0.1": ".pair.heads h1"}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_all_text_stands_out(page: Any, two_runs: str, one_run: str, theme: str) -> None:
    page.theme(theme)
    for address, places in ((one_run, PLACES), (two_runs, PLACES_OF_TWO)):
        page.go(address)
        for place, content in places.items():
            page.show(place)
            page.wait(f"document.querySelectorAll({content!r}).length > 0", place)
            if place == "view=overview":
                page.evaluate(REWARDS)
            weak = [f"{contrast:.2f} {text}" for contrast, text in page.evaluate(TEXTS) if contrast < LEAST]
            assert weak == [], f"{theme} {place}"
