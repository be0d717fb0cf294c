"""Writes random answers that a grammar accepts, byte by byte."""

from random import Random

from responses_api_models.local_model.grammar import CompletionGrammar, matcher

# Bytes that tend to end a value; preferred once an answer is long, so that every answer ends.
CLOSING = frozenset(b'"}]>0')
LONG = 150
TOO_LONG = 4000


def sample(grammar: CompletionGrammar, random: Random) -> str | None:
    """One answer, or None if it did not end in reasonable time."""
    state = matcher(grammar.text)
    written = bytearray()
    while not state.is_stopped() and len(written) < TOO_LONG:
        mask = state.compute_bitmask()
        allowed = [byte for byte in range(256) if mask[byte // 8] >> byte % 8 & 1]
        if state.is_accepting() and (not allowed or random.random() < 0.3):
            break
        assert allowed, f"nothing can follow {bytes(written)!r}"
        closing = [byte for byte in allowed if byte in CLOSING]
        byte = random.choice(closing if closing and len(written) > LONG else allowed)
        assert state.consume_token(byte), state.get_error()
        written.append(byte)
    return written.decode() if state.is_accepting() or state.is_stopped() else None
