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
    const behind = (element) => {
        const layers = [];
        for (let one = element; one; one = one.parentElement) layers.push(rgba(getComputedStyle(one).backgroundColor));
        return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255, 1]);
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


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_all_text_stands_out(page: Any, two_runs: str, one_run: str, theme: str) -> None:
    page.theme(theme)
    page.go(one_run)
    for place in ("view=overview", "view=table", "view=groups", "view=groups&by=agent", "rollout=0.0", "rollout=0.f0"):
        page.show(place)
        weak = [text for contrast, text in page.evaluate(TEXTS) if contrast < LEAST]
        assert weak == [], f"{theme} {place}"
    page.go(two_runs)
    for place in ("view=compare", "view=compare&a=0.0&b=0.1"):
        page.show(place)
        assert [text for contrast, text in page.evaluate(TEXTS) if contrast < LEAST] == [], f"{theme} {place}"
