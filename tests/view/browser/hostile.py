"""What a model could write to take over the page of whoever reads it, as rollouts.

Each payload, if it runs, sets ``window.taken``, opens a dialog, or asks a host that is not ours for something.
"""

import json
from collections.abc import Iterator
from typing import Any, Final

HIT: Final = "window.taken=1;alert(1)"
HOST: Final = "http://taken.invalid"
PIXEL: Final = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="

MARKUP: Final = [
    f"<script>{HIT}</script>",
    f"<img src=x onerror='{HIT}'>",
    f"<img src={HOST}/a.png>",
    f"<svg onload='{HIT}'><script>{HIT}</script></svg>",
    f"<svg><use href='{HOST}/a.svg#x'/><image href='{HOST}/b.png'/></svg>",
    f"<iframe src='javascript:{HIT}'></iframe><iframe srcdoc='<script>{HIT}</script>'></iframe>",
    f"<object data='{HOST}/o'></object><embed src='{HOST}/e'>",
    f"<style>@import '{HOST}/s.css'; body{{background:url({HOST}/bg.png)}} #app{{display:none}}</style>",
    f"<link rel=stylesheet href='{HOST}/l.css'><base href='{HOST}/'>",
    f"<meta http-equiv=refresh content='0;url={HOST}/m'>",
    f"<form action='{HOST}/f'><input name=q autofocus onfocus='{HIT}'><button formaction='{HOST}/g'>x</button></form>",
    f"<div style='position:fixed;inset:0;background:url({HOST}/d.png)' class='reward' id='app' onclick='{HIT}'>x</div>",
    f"<math><mtext><table><mglyph><style><!--</style><img title='--&gt;&lt;img src=1 onerror={HIT}&gt;'>",
    f"<noscript><p title='</noscript><img src=x onerror={HIT}>'></noscript>",
    f"<details open ontoggle='{HIT}'><video src={HOST}/v onerror='{HIT}'></video></details>",
    f"</script><script>{HIT}</script>",
    f"<template><script>{HIT}</script></template><a id=x tabindex=1 onfocus={HIT}>x</a>",
    f"<!--><img src=x onerror={HIT}>-->",
]
MARKDOWN: Final = [
    f"[click](javascript:{HIT})",
    f"[click](JaVaScRiPt:{HIT}) [tab](java\tscript:{HIT}) [entity](&#106;avascript:{HIT})",
    f"[data](data:text/html,<script>{HIT}</script>) [vb](vbscript:{HIT})",
    f"<javascript:{HIT}>",
    f"![pixel]({HOST}/pixel.png) ![svg](data:image/svg+xml;base64,PHN2Zy8+) ![html](data:text/html,x)",
    f'![alt" onerror="{HIT}](x "title\\" onerror=\\"{HIT}")',
    f"[ref][1]\n\n[1]: javascript:{HIT} 'title'",
    f'```"><script>{HIT}</script>\ncode\n```',
    f"```html\n<script>{HIT}</script>\n```\n\n`<img src=x onerror={HIT}>`",
    f"| a | b |\n|---|---|\n| <img src=x onerror={HIT}> | [x](javascript:{HIT}) |",
    f"[fine]({HOST}/only-when-clicked) <{HOST}/autolink>",
    "> " * 400 + "deep",
    "[" * 3000 + "](" * 3000,
]
FORMULAS: Final = [
    rf"$\href{{javascript:{HIT}}}{{x}}$ $$\url{{javascript:{HIT}}}$$",
    rf"$$\includegraphics[width=5em]{{{HOST}/i.png}}$$",
    rf"\(\htmlStyle{{background:url({HOST}/k.png)}}{{x}}\) \[\htmlData{{x=y}}{{z}} \htmlId{{app}}{{x}}\]",
    rf"$\text{{<img src=x onerror={HIT}>}}$ $\unicode{{x3c}}script>$",
    r"$$\def\a{\a\a}\a$$ $\rule{1000000em}{1000000em}$",
    rf"$$x \tag{{<script>{HIT}</script>}}$$ $\color{{red;background:url({HOST}/c)}}x$",
]
PAYLOADS: Final = [*MARKUP, *MARKDOWN, *FORMULAS]


def records() -> Iterator[dict[str, Any]]:
    """One rollout for each payload, with it in every place that is shown; then a few of odd shapes."""
    for number, payload in enumerate(PAYLOADS):
        yield rollout(number, payload)
    yield from odd_shapes(len(PAYLOADS))


def failures() -> Iterator[dict[str, Any]]:
    """Failed attempts whose class and message are hostile."""
    for number, payload in enumerate(MARKUP):
        yield {
            "_ng_task_index": number,
            "_ng_rollout_index": 1,
            "_ng_failure_class": payload,
            "error_message": payload,
            "_ng_http_body": payload,
            "agent_ref": {"name": payload},
        }


def rollout(number: int, payload: str) -> dict[str, Any]:
    """A rollout that is hostile all over."""
    arguments = json.dumps({payload: payload, "code": f"# {payload}\nprint()"})
    output: list[dict[str, Any]] = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": payload}]},
        {"type": "function_call", "call_id": payload, "name": payload, "arguments": arguments},
        {"type": "function_call_output", "call_id": payload, "output": payload},
        {"type": "function_call", "call_id": "b", "name": "tool", "arguments": payload},
        {
            "type": "function_call_output",
            "call_id": "b",
            "output": json.dumps({payload: [payload, {payload: payload}]}),
        },
        {"type": payload, "text": payload},
        {"type": "message", "role": payload, "content": payload},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": payload, "logprobs": [{"token": payload}]}],
        },
    ]
    output[-1] |= {"prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-1.0]}
    pictures = [
        f"{HOST}/picture.png",
        f"javascript:{HIT}",
        "data:text/html,<script>alert(1)</script>",
        f"data:image/png;base64,{PIXEL}",
    ]
    content = [
        {"type": "input_text", "text": payload},
        *({"type": "input_image", "image_url": url} for url in pictures),
    ]
    return {
        "_ng_task_index": number,
        "_ng_rollout_index": 0,
        "agent_ref": {"name": payload},
        "responses_create_params": {"instructions": payload, "input": [{"role": "user", "content": content}]},
        "response": {"model": payload, "output": output, "incomplete_details": {"reason": payload}},
        "reward": number % 2,
        "verdict": payload[:60],
        payload[:50]: 1.0,
        "nested": {payload[:50]: payload},
        "details": [payload, {payload: payload}],
        "timing": [{"name": payload, "start": 0, "end": 1}],
    }


def odd_shapes(number: int) -> Iterator[dict[str, Any]]:
    """Records that no collector writes: things in the place of other things."""
    element = {
        "type": "img",
        "props": {"src": "x", "onerror": HIT},
        "constructor": None,
        "__html": f"<img src=x onerror={HIT}>",
    }
    shapes: list[Any] = [
        {"response": {"output": [element, [element], "text", 5, None, {"role": "assistant", "content": element}]}},
        {"response": {"output": [{"role": "assistant", "content": [element, [element], None, 7]}], "usage": element}},
        {"response": element, "responses_create_params": {"input": element, "instructions": element}},
        {
            "response": {
                "output": [{"type": "function_call", "name": element, "arguments": element, "call_id": element}]
            }
        },
        {"__proto__": {"taken": 1}, "constructor": {"prototype": element}, "hasOwnProperty": "x", "toString": element},
        {"response": {"output": {"length": 10**9}}, "agent_ref": "text", "reward": "high"},
        {"response": None, "output": [{"role": element, "content": "x", "tool_calls": [element, None, 5]}]},
    ]
    for offset, shape in enumerate(shapes):
        yield {"_ng_task_index": number + offset, "_ng_rollout_index": 0, "reward": 0.5, **shape}
