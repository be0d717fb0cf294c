"""From a request to answers: the prompt, the grammar, what the engine writes, and its tokens."""

import json
import logging
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from nemo_gym.conversion.token_prefix import PrefixMismatchError, splice_prefix
from responses_api_models.local_model.completions import Outcome, Tokens
from responses_api_models.local_model.engine_pool import EnginePool, Generation
from responses_api_models.local_model.grammar import SchemaError
from responses_api_models.local_model.options import SEEDS, RequestError, Wish
from responses_api_models.local_model.prompting import plain_messages
from responses_api_models.local_model.token_scores import align
from responses_api_models.local_model.toolbox import CLOSE, Answer, Choice, answer_grammar, read_answer
from responses_api_models.local_model.worked_examples import Tool

logger = logging.getLogger(__name__)

# How many candidates to ask for when looking for the score of one token: likely ones first, then all.
CANDIDATES: Final = (64, 1_000_000)


class ToolCallingModel:
    """A model that was never taught to call tools, and does so all the same."""

    def __init__(self, pool: EnginePool, *, token_ids: bool, max_calls: int, carries_tokens: bool = True) -> None:
        self.pool = pool
        self._token_ids = token_ids
        self._carries_tokens = token_ids and carries_tokens
        self._max_calls = max_calls

    async def answer(self, wish: Wish) -> list[Outcome]:
        """As many answers as were asked for."""
        grammar = self._grammar(wish)
        prompt = await self._prompt(wish)
        room = await self.pool.context() - len(prompt)
        if room < 1:
            logger.warning(
                "a prompt of %d tokens exceeds the context of %d tokens a slot: the answer is empty and incomplete "
                "(raise n_ctx, or lower n_parallel)",
                len(prompt),
                len(prompt) + room,
            )
            return [Outcome(Answer("", []), True, len(prompt), 0, 0)]
        limit = room if wish.max_tokens is None else min(room, wish.max_tokens)
        options = {**wish.sampling, "n_predict": limit, "n_probs": self._scores_wanted(wish)}
        if grammar is not None:
            options["grammar"] = grammar
        # One after the other: they share the prompt, and the engine has it at hand.
        return [await self._one(wish, prompt, _with_seed(options, number)) for number in range(wish.answers)]

    def _grammar(self, wish: Wish) -> str | None:
        # A model that sees calls writes calls, also when it may not; then the grammar keeps it from that.
        if not wish.tools and wish.schema is None and not any(m.get("tool_calls") for m in wish.messages):
            return None
        tools = json.dumps([(tool.name, tool.description, tool.parameters) for tool in wish.tools])
        try:
            return _compiled(tools, json.dumps(wish.schema), wish.choice, 1 if wish.one_call else self._max_calls)
        except SchemaError as error:
            raise RequestError(str(error)) from error

    async def _prompt(self, wish: Wish) -> list[int]:
        whole = await self.pool.prompt(plain_messages(wish.messages, wish.tools), wish.template_options)
        carrying = [n for n, message in enumerate(wish.messages) if message.get("generation_token_ids") is not None]
        if not self._carries_tokens or not carrying:
            return whole
        last: Mapping[str, Any] = wish.messages[carrying[-1]]
        known = plain_messages(wish.messages, wish.tools, count=carrying[-1] + 1)
        prefix = await self.pool.prompt(known, wish.template_options, answer_follows=False)
        eos = await self.pool.eos_token()
        carried = [*last["prompt_token_ids"], *last["generation_token_ids"]]
        try:
            return splice_prefix(whole, prefix, carried, -1 if eos is None else eos)
        except PrefixMismatchError as error:
            logger.warning("earlier turns are tokenized anew: %s", error)
            return whole

    def _scores_wanted(self, wish: Wish) -> int:
        if wish.top_logprobs is None:
            return int(self._token_ids)
        return max(1, wish.top_logprobs)

    async def _one(self, wish: Wish, prompt: list[int], options: Mapping[str, Any]) -> Outcome:
        generation = await self.pool.generate(prompt, options, returns_after=CLOSE if wish.tools else "")
        answer = read_answer(generation.text) if wish.tools else Answer(generation.text, [])
        # A call that is complete needs nothing more, even if the limit was reached with its last token.
        complete = bool(answer.calls) and generation.text.endswith(CLOSE)
        return Outcome(
            answer=answer,
            cut_off=generation.cut_off and not complete,
            prompt_tokens=len(prompt),
            cached_tokens=generation.cached_tokens,
            generated_tokens=len(generation.tokens),
            scores=_shown_scores(generation, wish.top_logprobs),
            tokens=await self._tokens(prompt, generation) if self._token_ids else None,
        )

    async def _tokens(self, prompt: list[int], generation: Generation) -> Tokens:
        log_probs: list[float] = []
        for position, score in enumerate(align(generation.tokens, generation.scores)):
            if score is None:
                score = await self._score([*prompt, *generation.tokens[:position]], generation.tokens[position])  # noqa: PLW2901
            log_probs.append(score)
        return Tokens(prompt, generation.tokens, log_probs)

    async def _score(self, prompt: list[int], token: int) -> float:
        """The log-probability of a token after a prompt, found among the candidates for its place."""
        for count in CANDIDATES:
            # The engine lists candidates for what it writes, so it has to write something complete.
            options = {"n_predict": 1, "n_probs": count, "grammar": "root ::= [a-z]"}
            generation = await self.pool.generate(prompt, options)
            for candidate in generation.scores[0]["top_logprobs"]:
                if candidate["id"] == token:
                    score: float = candidate["logprob"]
                    return score
        raise LookupError(f"the engine does not know token {token}")


def _shown_scores(generation: Generation, top: int | None) -> list[dict[str, Any]] | None:
    """The scores of what can be seen: the token that ends an answer has no text."""
    if top is None:
        return None
    return [{**score, "top_logprobs": score["top_logprobs"][:top]} for score in generation.scores if score["bytes"]]


def _with_seed(options: dict[str, Any], number: int) -> dict[str, Any]:
    """Several answers to one request with one seed would be the same answer."""
    if number == 0 or not isinstance(options.get("seed"), int):
        return options
    return {**options, "seed": (options["seed"] + number) % SEEDS}


@lru_cache(maxsize=256)
def _compiled(tools: str, schema: str, choice: Choice, max_calls: int) -> str:
    offered = [Tool(*fields) for fields in json.loads(tools)]
    return answer_grammar(offered, mode=choice, max_calls=max_calls, schema=json.loads(schema))
