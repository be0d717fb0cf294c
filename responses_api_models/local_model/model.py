"""From a request to completions: prompt, grammar, generation, and the tokens with their log-probabilities."""

import contextlib
import json
import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from nemo_gym.conversion.completion_tokens import UNTRUNCATED, LogProbs, sampling_record
from responses_api_models.local_model.completions import Outcome, Tokens
from responses_api_models.local_model.engine import EngineError
from responses_api_models.local_model.engine_pool import EnginePool, Fleet, Generation
from responses_api_models.local_model.grammar import Choice, CompletionGrammar, SchemaError, completion_grammar
from responses_api_models.local_model.prompts import Prompts
from responses_api_models.local_model.request import SEEDS, SYNONYMS, ChatRequest, RequestError
from responses_api_models.local_model.slots import RetiredError
from responses_api_models.local_model.tool_calls import CLOSE, Answer, Tool, read_answer

logger = logging.getLogger(__name__)

# How many candidates to ask for when looking for the score of one token: likely ones first, then all.
CANDIDATES: Final = (64, 1_000_000)
# With token ids, unless a request says otherwise.
DEFAULTS: Final = {SYNONYMS.get(name, name): value for name, value in UNTRUNCATED.items()}


class _Written(NamedTuple):
    """What was generated, and by which engines, because missing scores are requested from the same ones."""

    generation: Generation
    fleet: Fleet
    options: Mapping[str, Any]


class ToolCallingModel:
    """Lets a model that was not trained on tools call them: described in the prompt, enforced by a grammar."""

    def __init__(self, pool: EnginePool, *, token_ids: bool, max_calls: int, carries_tokens: bool = True) -> None:
        self.pool = pool
        self._token_ids = token_ids
        self._prompts = Prompts(pool, carries_tokens=token_ids and carries_tokens)
        self._max_calls = max_calls

    async def complete(self, request: ChatRequest) -> list[Outcome]:
        """Generate as many completions as were requested."""
        grammar = self._grammar(request)
        prompt = await self._prompts.of(request)
        room = await self.pool.context() - len(prompt)
        if room < 1:
            logger.warning(
                "a prompt of %d tokens exceeds the context of %d tokens a slot: the completion is empty and incomplete "
                "(raise n_ctx, or lower n_parallel)",
                len(prompt),
                len(prompt) + room,
            )
            return [Outcome(Answer("", []), True, len(prompt), 0, 0)]
        limit = room if request.max_tokens is None else min(room, request.max_tokens)
        sampling = {**DEFAULTS, **request.sampling} if self._token_ids else request.sampling
        options = {**sampling, "n_predict": limit, "n_probs": self._scores_wanted(request)}
        if grammar is not None:
            end = await self.pool.end_of_turn() or await self.pool.eos_token()
            options["grammar"] = grammar.for_engine(end)
        # One after the other: they share the prompt, which the engine then does not have to process again.
        return [
            await self._one(request, prompt, grammar, _with_seed(options, number))
            for number in range(request.completions)
        ]

    async def count(self, request: ChatRequest) -> int:
        """How many tokens the prompt of a request has."""
        return len(await self._prompts.of(request))

    def _grammar(self, request: ChatRequest) -> CompletionGrammar | None:
        # A model that sees calls writes calls, even when it may not; the grammar prevents that.
        sees_calls = request.all_tools or any(message.get("tool_calls") for message in request.messages)
        if not request.tools and request.schema is None and not sees_calls:
            return None
        tools = json.dumps([(tool.name, tool.description, tool.parameters) for tool in request.tools])
        try:
            return _compiled(
                tools, json.dumps(request.schema), request.choice, 1 if request.one_call else self._max_calls
            )
        except SchemaError as error:
            raise RequestError(str(error)) from error

    def _scores_wanted(self, request: ChatRequest) -> int:
        if request.top_logprobs is None:
            return int(self._token_ids)
        return max(1, request.top_logprobs)

    async def _one(
        self, request: ChatRequest, prompt: list[int], grammar: CompletionGrammar | None, options: Mapping[str, Any]
    ) -> Outcome:
        while True:
            with contextlib.suppress(RetiredError):  # the weights were swapped while waiting; start with the new ones
                async with self.pool.turn() as fleet:
                    end = CLOSE if request.tools else ""
                    generation = await fleet.generate(prompt, options, returns_after=end, movable=True)
                    return await self._outcome(request, prompt, grammar, _Written(generation, fleet, options))

    async def _outcome(
        self, request: ChatRequest, prompt: list[int], grammar: CompletionGrammar | None, written: "_Written"
    ) -> Outcome:
        generation, fleet, _ = written
        # A limit may cut a character in two, and its first half is not valid text.
        text = generation.text.rstrip("\ufffd") if generation.cut_off else generation.text
        if grammar is not None and not grammar.accepts(text, cut_off=not generation.ended):
            raise EngineError(500, f"the engine did not keep to the grammar of its completion: {text[:200]!r}")
        answer = read_answer(generation.text) if request.tools else Answer(generation.text, [])
        # A call that is complete needs nothing more, even if the limit was reached with its last token.
        complete = bool(answer.calls) and generation.text.endswith(CLOSE)
        return Outcome(
            answer=answer,
            cut_off=generation.cut_off and not complete,
            prompt_tokens=len(prompt),
            cached_tokens=generation.cached_tokens,
            generated_tokens=len(generation.tokens),
            scores=_shown_scores(generation, request.top_logprobs),
            tokens=await self._tokens(prompt, written) if self._token_ids else None,
            version=fleet.version,
        )

    async def _tokens(self, prompt: list[int], written: "_Written") -> Tokens:
        generation, fleet, options = written
        log_probs: list[float] = []
        for position, score in enumerate(align(generation.tokens, generation.scores)):
            if score is None:
                score = await _score(fleet, [*prompt, *generation.tokens[:position]], generation.tokens[position])  # noqa: PLW2901
            log_probs.append(score)
        # The engine reports the model's own distribution, before a grammar or a sampler changes it.
        return Tokens(prompt, generation.tokens, log_probs, sampling_record(LogProbs.RAW, options))


async def _score(fleet: Fleet, prompt: list[int], token: int) -> float:
    """Find the log-probability of a token after a prompt among the candidates for its place."""
    for count in CANDIDATES:
        # The engine lists candidates for what it writes, so it has to write something complete.
        options = {"n_predict": 1, "n_probs": count, "grammar": "root ::= [a-z]"}
        generation = await fleet.generate(prompt, options)
        for candidate in generation.scores[0]["top_logprobs"]:
            if candidate["id"] == token:
                score: float = candidate["logprob"]
                return score
    raise LookupError(f"the engine does not know token {token}")


def _shown_scores(generation: Generation, top: int | None) -> list[dict[str, Any]] | None:
    """Select the scores of visible tokens: the one that ends a completion has no text."""
    if top is None:
        return None
    return [{**score, "top_logprobs": score["top_logprobs"][:top]} for score in generation.scores if score["bytes"]]


def _with_seed(options: dict[str, Any], number: int) -> dict[str, Any]:
    """Vary the seed, or several completions of one request would be the same."""
    if number == 0 or not isinstance(options.get("seed"), int):
        return options
    return {**options, "seed": (options["seed"] + number) % SEEDS}


@lru_cache(maxsize=256)
def _compiled(tools: str, schema: str, choice: Choice, max_calls: int) -> CompletionGrammar:
    offered = [Tool(*fields) for fields in json.loads(tools)]
    return completion_grammar(offered, mode=choice, max_calls=max_calls, schema=json.loads(schema))


def align(tokens: Sequence[int], scores: Sequence[Mapping[str, Any]]) -> list[float | None]:
    """Find the log-probability of every token; None where the engine did not report one.

    The engine reports scores where text became complete: a character of several tokens has one entry, for its last
    token, and tokens after the end of the visible text (a stop word) have none.
    """
    aligned: list[float | None] = [None] * len(tokens)
    position = 0
    for number, score in enumerate(scores):
        following = scores[number + 1] if number + 1 < len(scores) else None
        end = _end(tokens, position, score, following)
        if end is None:
            break
        aligned[end - 1] = score["logprob"]
        position = end
    return aligned


def _end(
    tokens: Sequence[int], start: int, score: Mapping[str, Any], following: Mapping[str, Any] | None
) -> int | None:
    """Find where the tokens of an entry end: at its id, and where the next entry can begin."""
    # Only a character beyond ASCII can be spread over tokens, of one byte or more each.
    longest = len(score["bytes"]) if any(byte > 127 for byte in score["bytes"]) else 1
    for end in range(start + 1, min(start + max(longest, 1), len(tokens)) + 1):
        if tokens[end - 1] == score["id"] and _can_begin(tokens, end, following):
            return end
    return None


def _can_begin(tokens: Sequence[int], start: int, score: Mapping[str, Any] | None) -> bool:
    if score is None:
        return True
    if any(byte > 127 for byte in score["bytes"]):
        return score["id"] in tokens[start : start + len(score["bytes"])]
    return start < len(tokens) and tokens[start] == score["id"]
