"""Puts the tokens that were really there in front of a prompt that was rendered again. Pure.

An answer goes from token ids to text to parsed items and comes back through the chat template: the ids of the same
conversation may differ the second time (the text is split elsewhere, a tool call is written otherwise). A trainer
needs one growing sequence, so the true ids replace what the template made of them.
"""

from collections.abc import Sequence


class PrefixMismatchError(ValueError):
    """The prompt can't be corrected: the template does not repeat the history the way this rests on."""


def splice_prefix(
    template_ids: Sequence[int],
    template_prefix_ids: Sequence[int],
    true_prefix_ids: Sequence[int],
    eos_id: int,
) -> list[int]:
    """The whole prompt, with the true tokens up to the end of the assistant's last answer.

    ``template_ids``
        the template's rendering of the whole history, with the prompt for the next answer
    ``template_prefix_ids``
        its rendering of the history up to and including the last answer that has true tokens
    ``true_prefix_ids``
        prompt and generation of the call that gave this answer
    ``eos_id``
        the token that ends a turn

    The last ``eos_id`` of ``template_prefix_ids`` ends that answer. Everything before it is replaced by
    ``true_prefix_ids``, whose own final ``eos_id`` is not repeated: an answer that was cut off (``max_output_tokens``)
    has none, the template always writes one. So the result starts with the true tokens, and then says what the
    template says. Without true tokens it is ``template_ids``.

    Raises ``PrefixMismatchError`` where the premise does not hold: no ``eos_id`` in ``template_prefix_ids``, or
    another history in ``template_ids`` (a template that leaves earlier reasoning out). What follows the ``eos_id`` in
    ``template_prefix_ids`` is not compared: a line break may merge with what comes next.
    """
    if not true_prefix_ids:
        return list(template_ids)
    cut = _last(template_prefix_ids, eos_id)
    if cut < 0:
        raise PrefixMismatchError(f"the template ends no turn with token {eos_id}: is it the right one?")
    repeated, history = list(template_ids[: cut + 1]), list(template_prefix_ids[: cut + 1])
    if repeated != history:
        raise PrefixMismatchError(
            f"the template renders the history differently from token {_first_difference(repeated, history)} on once "
            "there is more to say: it has to keep earlier turns, with their reasoning, as they were"
        )
    end = len(true_prefix_ids) - (true_prefix_ids[-1] == eos_id)
    return [*true_prefix_ids[:end], *template_ids[cut:]]


def _last(ids: Sequence[int], wanted: int) -> int:
    """Where the token is last; -1 if nowhere."""
    for position in range(len(ids) - 1, -1, -1):
        if ids[position] == wanted:
            return position
    return -1


def _first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((position for position, (mine, theirs) in pairs if mine != theirs), min(len(one), len(other)))
