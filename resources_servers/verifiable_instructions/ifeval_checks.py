# ruff: noqa: D103 - the names of the instructions say it all
"""The kinds of instructions of IFEval (Zhou et al., 2023): length, format, content, letter case, language."""

import json
import re
from collections.abc import Callable
from typing import Final, Literal

from resources_servers.verifiable_instructions.text import language_of, plain_sentences, words

Relation = Literal["less than", "at least"]

CONSTRAINED: Final = ("My answer is yes.", "My answer is no.", "My answer is maybe.")


def compares(count: int, relation: str, threshold: int) -> bool:
    """``less than`` or ``at least``."""
    return count < threshold if relation == "less than" else count >= threshold


def keyword_existence(text: str, keywords: list[str]) -> bool:
    folded = text.lower()
    return all(keyword.lower() in folded for keyword in keywords)


def keyword_frequency(text: str, keyword: str, frequency: int, relation: Relation) -> bool:
    return compares(text.lower().count(keyword.lower()), relation, frequency)


def forbidden_words(text: str, forbidden_words: list[str]) -> bool:
    return not any(re.search(rf"\b{re.escape(word)}\b", text, re.IGNORECASE) for word in forbidden_words)


def letter_frequency(text: str, letter: str, let_frequency: int, let_relation: Relation) -> bool:
    return compares(text.lower().count(letter.lower()), let_relation, let_frequency)


def response_language(text: str, language: str) -> bool:
    found = language_of(text)
    return found is None or found == language  # what can't be determined is not held against the answer


def number_sentences(text: str, num_sentences: int, relation: Relation) -> bool:
    return compares(len(plain_sentences(text)), relation, num_sentences)


def number_paragraphs(text: str, num_paragraphs: int) -> bool:
    paragraphs = [paragraph.strip() for paragraph in text.split("***")]
    if not paragraphs[0]:
        paragraphs = paragraphs[1:]
    if paragraphs and not paragraphs[-1]:
        paragraphs = paragraphs[:-1]
    return all(paragraphs) and len(paragraphs) == num_paragraphs


def number_words(text: str, num_words: int, relation: Relation) -> bool:
    return compares(len(words(text)), relation, num_words)


def nth_paragraph_first_word(text: str, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    paragraphs = text.split("\n\n")
    filled = [paragraph for paragraph in paragraphs if paragraph.strip()]
    if len(filled) != num_paragraphs or nth_paragraph > len(paragraphs):
        return False
    paragraph = paragraphs[nth_paragraph - 1].split()
    found = re.match(r"[^.,?!'\"]*", paragraph[0].lstrip("'\"")) if paragraph else None
    return found is not None and found.group().lower() == first_word.lower()


def number_placeholders(text: str, num_placeholders: int) -> bool:
    return len(re.findall(r"\[[^\[\]\n]*\]", text)) >= num_placeholders


def postscript(text: str, postscript_marker: str) -> bool:
    pattern = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}.get(postscript_marker)
    return re.search(pattern or re.escape(postscript_marker.lower()), text.lower()) is not None


def number_bullet_lists(text: str, num_bullets: int) -> bool:
    lines = [line.lstrip() for line in text.split("\n")]
    stars = sum(1 for line in lines if re.match(r"\*[^*]", line))
    return stars + sum(1 for line in lines if line.startswith("-")) == num_bullets


def constrained_response(text: str) -> bool:
    return any(option in text for option in CONSTRAINED)


def number_highlighted_sections(text: str, num_highlights: int) -> bool:
    single = [found for found in re.findall(r"\*([^\n*]*)\*", text) if found.strip()]
    double = [found for found in re.findall(r"\*\*([^\n*]*)\*\*", text) if found.strip()]
    return len(single) + len(double) >= num_highlights


def multiple_sections(text: str, section_spliter: str, num_sections: int) -> bool:
    return len(re.findall(rf"\s?{re.escape(section_spliter.strip())}\s?\d+\s?", text)) >= num_sections


def json_format(text: str) -> bool:
    bare = text.strip()
    for opening in ("```json", "```Json", "```JSON", "```"):
        bare = bare.removeprefix(opening)
    try:
        json.loads(bare.removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


def title(text: str) -> bool:
    return any(found.strip() for found in re.findall(r"<<([^\n<>]+)>>", text))


def two_responses(text: str) -> bool:
    parts = text.split("******")
    answers = [part.strip() for number, part in enumerate(parts) if part.strip() or 0 < number < len(parts) - 1]
    return len(answers) == 2 and all(answers) and answers[0] != answers[1]


def repeat_prompt(text: str, prompt_to_repeat: str) -> bool:
    return text.strip().lower().startswith(prompt_to_repeat.strip().lower())


def end_phrase(text: str, end_phrase: str) -> bool:
    return text.strip().strip('"').lower().endswith(end_phrase.strip().lower())


def quotation(text: str) -> bool:
    bare = text.strip()
    return len(bare) > 1 and bare[0] == bare[-1] == '"'


def capital_word_frequency(text: str, capital_frequency: int, capital_relation: Relation) -> bool:
    capitals = sum(1 for word in re.findall(r"[\w'-]+", text) if word.isupper())
    return compares(capitals, capital_relation, capital_frequency)


def english_capital(text: str) -> bool:
    return text.isupper() and language_of(text) in {None, "en"}


def english_lowercase(text: str) -> bool:
    return text.islower() and language_of(text) in {None, "en"}


def no_comma(text: str) -> bool:
    return "," not in text


CHECKS: Final[dict[str, Callable[..., bool]]] = {
    "keywords:existence": keyword_existence,
    "keywords:frequency": keyword_frequency,
    "keywords:forbidden_words": forbidden_words,
    "keywords:letter_frequency": letter_frequency,
    "language:response_language": response_language,
    "length_constraints:number_sentences": number_sentences,
    "length_constraints:number_paragraphs": number_paragraphs,
    "length_constraints:number_words": number_words,
    "length_constraints:nth_paragraph_first_word": nth_paragraph_first_word,
    "detectable_content:number_placeholders": number_placeholders,
    "detectable_content:postscript": postscript,
    "detectable_format:number_bullet_lists": number_bullet_lists,
    "detectable_format:constrained_response": constrained_response,
    "detectable_format:number_highlighted_sections": number_highlighted_sections,
    "detectable_format:multiple_sections": multiple_sections,
    "detectable_format:json_format": json_format,
    "detectable_format:title": title,
    "combination:two_responses": two_responses,
    "combination:repeat_prompt": repeat_prompt,
    "startend:end_checker": end_phrase,
    "startend:quotation": quotation,
    "change_case:capital_word_frequency": capital_word_frequency,
    "change_case:english_capital": english_capital,
    "change_case:english_lowercase": english_lowercase,
    "punctuation:no_comma": no_comma,
}
