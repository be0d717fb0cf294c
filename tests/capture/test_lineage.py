"""Parents of calls: the longest beginning wins, ties and breaks open roots, and nothing leaks between attempts."""

import random
from collections import Counter
from typing import Any

import orjson
import pytest

from nemo_gym.capture.calls import AttemptCalls, CallStore, CapturedCall, SampledTokens, json_text, json_values
from nemo_gym.capture.lineage import RootReason, prompt_text, sequence_text
from nemo_gym.capture.traces import complete
from nemo_gym.exporting.tokens import token_spans
from nemo_gym.schemas.record import Record


def sampled(prompt: list[int], generation: list[int]) -> SampledTokens:
    return SampledTokens(json_text(prompt), json_text(generation), json_text([-0.5] * len(generation)), {})


def add(attempt: AttemptCalls, prompt: list[int], generation: list[int], **more: Any) -> CapturedCall:
    call = attempt.add(sampled(prompt, generation), **more)
    attempt.describe(call, [{"role": "user", "content": str(prompt)}], [{"type": "message", "role": "assistant"}])
    return call


class Player:
    """One rollout of a synthetic agent: chains that grow, branch, are compacted or repeated, and sub-agents."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.sequences: list[list[int]] = []  # of every call
        self.parents: list[int | None] = []
        self.open: list[int] = []  # calls that may be continued
        self.ties = 0

    def play(self) -> tuple[list[int], list[int], int | None]:
        """The next call: its prompt, its generation, and its true parent."""
        chance, parent, fresh = self.chance, None, [self.chance.randrange(10**6) for _ in range(5)]
        if self.open and chance.random() > 0.08:
            parent = chance.choice(self.open[-3:])
            fresh = self.sequences[parent] + fresh[: chance.randrange(1, 5)]
        return fresh, [chance.randrange(10**6) for _ in range(chance.randrange(1, 6))], parent

    def note(self, prompt: list[int], generation: list[int], parent: int | None) -> None:
        self.sequences.append(prompt + generation)
        self.parents.append(parent)
        self.open.append(len(self.sequences) - 1)


def test_ten_thousand_calls_of_a_hundred_interleaved_rollouts_find_their_parents() -> None:
    chance = random.Random(7)
    store, players = CallStore(), [Player(seed) for seed in range(100)]
    names: list[list[str]] = [[] for _ in players]
    waiting: list[tuple[int, list[int], list[int], int | None]] = []
    for _ in range(10_000):
        number = chance.randrange(100)
        player = players[number]
        again = waiting.pop(chance.randrange(len(waiting))) if waiting and chance.random() < 0.05 else None
        if again is not None:  # a request that is repeated, to which the model gives another reply
            number, prompt, _, parent = again
            player, generation = players[number], [chance.randrange(10**6) for _ in range(3)]
        else:
            prompt, generation, parent = player.play()
            waiting = [*waiting[-50:], (number, prompt, generation, parent)]
        attempt = store.attempt(f"mark {number}")
        assert attempt is not None
        call = attempt.add(sampled(prompt, generation))
        expected = names[number][parent] if parent is not None else None
        found = call.parent.id if isinstance(call.parent, CapturedCall) else None
        assert found == expected
        assert (found is None) == (call.reason is not None)
        names[number].append(call.id)
        player.note(prompt, generation, parent)
    for number, player in enumerate(players):
        attempt = store.attempt(f"mark {number}")
        assert attempt is not None
        assert [json_values(sequence_text(call)) for call in attempt.calls.values()] == player.sequences
        taken = store.take(f"mark {number}")
        row: dict[str, Any] = {"response": {"output": []}}
        for call in taken:
            call["output"] = [{"type": "message"}]
        complete(row, taken)
        owned = Counter(
            token
            for span in token_spans([], [{**trace, "trained": True} for trace in Record(row).traces])
            for token, own in zip(span.ids, span.mask, strict=True)
            if own
        )
        assert owned == Counter(token for call in taken for token in call["generation_token_ids"])


def test_equal_calls_are_a_tie_unless_the_request_names_one() -> None:
    attempt = AttemptCalls()
    first, second = add(attempt, [1], [2, 3]), add(attempt, [1], [2, 3])
    assert first.parent is second.parent is None
    unclear = add(attempt, [1, 2, 3, 4], [5])
    assert (unclear.parent, unclear.reason) == (None, RootReason.TIE)
    assert add(attempt, [1, 2, 3, 9], [5], hint=second).parent is second


def test_numbers_are_not_taken_for_their_beginnings() -> None:
    attempt = AttemptCalls()
    add(attempt, [1], [23])
    assert add(attempt, [1, 234], [5]).parent is None
    assert prompt_text(add(attempt, [1, 23], [5])) == b"1,23"
    assert add(attempt, [], [7]).length == 1


def test_a_prompt_that_shares_only_a_part_is_kept_as_what_it_adds() -> None:
    attempt = AttemptCalls()
    add(attempt, [1, 2, 3], [4, 5])
    call = add(attempt, [1, 2, 3, 9, 9], [6])
    assert (call.parent, call.kept, call.added) == (None, 3, b"9,9")
    assert json_values(prompt_text(call)) == [1, 2, 3, 9, 9]


def test_texts_move_to_a_file_beyond_the_limit_and_are_found_again() -> None:
    store = CallStore(most_bytes=2000)
    prompt = list(range(1000, 1300))
    for number in range(3):
        attempt = store.attempt(f"m{number}")
        assert attempt is not None
        add(attempt, prompt, [number])
        store.make_room()
    assert store.size <= 2000
    for number in range(3):
        attempt = store.attempt(f"m{number}")
        assert attempt is not None
        assert add(attempt, [*prompt, number, 7], [8]).parent is not None
        [first, second] = store.take(f"m{number}")
        assert (first["added"], second["added"], second["kept"]) == (prompt, [7], 301)
        assert first["input"] == [{"role": "user", "content": str(prompt)}]
    assert store.size == 0


def test_what_is_counted_is_what_is_held() -> None:
    store, chance = CallStore(most_bytes=3000), random.Random(5)
    attempts: dict[str, AttemptCalls] = {}
    for step in range(300):
        mark = f"m{chance.randrange(60)}"
        attempt = store.attempt(mark)
        if attempt is None:
            continue
        attempts[mark] = attempt
        add(attempt, [chance.randrange(10**6) for _ in range(chance.randrange(1, 90))], [step])
        if chance.random() < 0.1:
            store.take(mark)
            del attempts[mark]
        store.make_room()
        assert store.size == sum(call.size for each in attempts.values() for call in each.calls.values()) <= 3000
    for mark in attempts:
        assert store.take(mark)
    assert store.size == 0


def test_attempts_that_nobody_ends_are_forgotten() -> None:
    store = CallStore(most_attempts=3)
    for number in range(5):
        attempt = store.attempt(f"m{number}")
        assert attempt is not None
        add(attempt, [1], [2])
    assert len(store) == 3
    assert store.take("m0") == []


@pytest.mark.parametrize("seed", range(20))
def test_rows_of_random_agents_own_each_sampled_token_once(seed: int) -> None:
    player, attempt, delivered = Player(seed), AttemptCalls(), []
    for _ in range(25):
        prompt, generation, parent = player.play()
        call = add(attempt, prompt, generation)
        player.note(prompt, generation, parent)
        if player.chance.random() < 0.5:
            delivered.append({"type": "message", "ng_call": call.id})
    row: dict[str, Any] = {"response": {"output": delivered}}
    complete(row, orjson.loads(orjson.dumps(attempt.taken([item["ng_call"] for item in delivered]))))
    record = Record(row)
    spans = token_spans(record.items, record.traces)
    owned = Counter(t for span in spans for t, own in zip(span.ids, span.mask, strict=True) if own)
    assert owned == Counter(token for call in attempt.calls.values() for token in json_values(call.generation))
    assert not any("ng_call" in item for trace in record.traces for item in trace.get("output", ()))
