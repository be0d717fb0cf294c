"""Replaces the beginning of a newly rendered prompt by the tokens that were really used. Pure.

An answer goes from token ids to text to parsed items and comes back through the chat template. The ids of the same
conversation may then differ (the text is split elsewhere, a tool call is written differently). A trainer needs one
growing sequence, so the true ids replace those of the template.
"""

from collections.abc import Sequence


class PrefixMismatchError(ValueError):
    """The prompt can't be corrected, because the template does not repeat the history unchanged."""


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
        prompt and generation of the call that produced this answer
    ``eos_id``
        the token that ends a turn

    The last ``eos_id`` of ``template_prefix_ids`` ends that answer. Everything before it is replaced by
    ``true_prefix_ids``, whose own final ``eos_id`` is not repeated: an answer that was cut off (``max_output_tokens``)
    has none, while the template always writes one. So the result starts with the true tokens and continues with those
    of the template. Without true tokens it is ``template_ids``.

    Raises ``PrefixMismatchError`` if there is no ``eos_id`` in ``template_prefix_ids``, or another history in
    ``template_ids``. What follows the ``eos_id`` is not compared: a line break may merge with what comes next.
    """
    if not true_prefix_ids:
        return list(template_ids)
    cut = _last(template_prefix_ids, eos_id)
    if cut < 0:
        raise PrefixMismatchError(
            f"the template does not end turns with token {eos_id}; check that it is the right token"
        )
    repeated, history = list(template_ids[: cut + 1]), list(template_prefix_ids[: cut + 1])
    if repeated != history:
        raise PrefixMismatchError(
            "the template must keep earlier turns and their reasoning unchanged, but when the conversation goes on it "
            f"renders them differently from token {_first_difference(repeated, history)} on"
        )
    end = len(true_prefix_ids) - (true_prefix_ids[-1] == eos_id)
    return [*true_prefix_ids[:end], *template_ids[cut:]]


def _last(ids: Sequence[int], wanted: int) -> int:
    """The last position of the token, or -1."""
    for position in range(len(ids) - 1, -1, -1):
        if ids[position] == wanted:
            return position
    return -1


def _first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((position for position, (mine, theirs) in pairs if mine != theirs), min(len(one), len(other)))
