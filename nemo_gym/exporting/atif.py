"""Rollouts as trajectories in the Agent Trajectory Interchange Format, one on each line.

A step is one contribution: a message of the system or the user, or an answer of the agent with its tool calls and their
results. Token ids and log-probabilities of a model call are in the metrics of its step.
"""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from nemo_gym import __version__
from nemo_gym.conversion.parts import reasoning_texts
from nemo_gym.exporting.recipe import Recipe
from nemo_gym.exporting.records import ExportedRollout
from nemo_gym.exporting.sft import Row, UnfitError, input_items
from nemo_gym.exporting.tokens import token_calls
from nemo_gym.schemas.record import Record

VERSION: Final = "ATIF-v1.4"
_SOURCES: Final = {"system": "system", "developer": "system", "user": "user", "assistant": "agent"}


def atif_rows(rollout: ExportedRollout, recipe: Recipe) -> Iterator[Row]:
    """The trajectory of a rollout."""
    steps: list[Row] = []
    _add_items(rollout, input_items(rollout), recipe, steps)
    _add_items(rollout, Record(rollout.record.with_prompts()).output or [], recipe, steps)
    for number, step in enumerate(steps, 1):
        step["step_id"] = number
    used = {name: count for name, count in rollout.record.reported_usage.items() if isinstance(count, int)}
    row: Row = {
        "schema_version": VERSION,
        "session_id": str(rollout.record.response.get("id") or f"{rollout.task.hex()}-{rollout.rollout}"),
        "agent": {"name": rollout.record.agent or "agent", "version": __version__, "model_name": rollout.model},
        "steps": steps,
        "final_metrics": {
            "total_prompt_tokens": used.get("input_tokens"),
            "total_completion_tokens": used.get("output_tokens"),
            "total_steps": len(steps),
        },
        "extra": rollout.labels(),
    }
    yield row


def _add_items(rollout: ExportedRollout, items: list[dict[str, Any]], recipe: Recipe, steps: list[Row]) -> None:
    step: Row | None = None
    for item in items:
        kind = item.get("type") or "message"
        if kind == "function_call_output":
            _add_result(step, item)
            continue
        if kind == "message" and item.get("role") != "assistant":
            steps.append({"source": _SOURCES.get(str(item.get("role")), "user"), "message": _text(item.get("content"))})
            step = None
            continue
        # Results or metrics end a step: what the agent says next belongs to its next call of the model.
        if step is None or "observation" in step or "metrics" in step:
            step = {"source": "agent", "model_name": rollout.model, "message": "", **_moment(rollout)}
            steps.append(step)
        _add_item(step, kind, item, recipe)


def _add_item(step: Row, kind: str, item: Mapping[str, Any], recipe: Recipe) -> None:
    if kind == "message":
        step["message"] += _text(item.get("content"))
    elif kind == "reasoning":
        if recipe.reasoning != "drop":
            step["reasoning_content"] = step.get("reasoning_content", "") + _reasoning(item)
    elif kind == "function_call":
        step.setdefault("tool_calls", []).append(
            {
                "tool_call_id": str(item.get("call_id")),
                "function_name": str(item.get("name")),
                "arguments": _arguments(item.get("arguments")),
            }
        )
    else:
        raise UnfitError(f"has items of type {kind}")
    for tokens in token_calls([item]):
        step["metrics"] = {
            "prompt_tokens": len(tokens.prompt),
            "completion_tokens": len(tokens.generation),
            "prompt_token_ids": tokens.prompt,
            "completion_token_ids": tokens.generation,
            "logprobs": tokens.log_probs,
        }


def _reasoning(item: Mapping[str, Any]) -> str:
    try:
        return "".join(reasoning_texts(item))
    except (KeyError, TypeError):
        raise UnfitError("has items that are not valid") from None


def _add_result(step: Row | None, item: Mapping[str, Any]) -> None:
    made = [call["tool_call_id"] for call in (step or {}).get("tool_calls", ())]
    if step is None or item.get("call_id") not in made:
        raise UnfitError("has the result of a call that was never made")
    results = step.setdefault("observation", {"results": []})["results"]
    results.append({"source_call_id": str(item["call_id"]), "content": _text(item.get("output"))})


def _moment(rollout: ExportedRollout) -> dict[str, str]:
    created = rollout.record.response.get("created_at")
    return {"timestamp": datetime.fromtimestamp(created, UTC).isoformat()} if isinstance(created, int | float) else {}


def _arguments(text: Any) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except (ValueError, TypeError):
        value = None
    if not isinstance(value, dict):
        raise UnfitError("has tool calls whose arguments are not a JSON object")
    return value


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") or part.get("refusal") for part in parts if isinstance(part, dict)]
    if not all(isinstance(text, str) for text in texts):
        raise UnfitError("has images or files, which a trajectory of text can't hold")
    return "".join(map(str, texts))
