"""Every instruction with an answer that follows it and one that does not; and the verdicts of IFBench's reference."""

import json
from typing import Any

import pytest

from nemo_gym import PARENT_DIR
from resources_servers.verifiable_instructions import ifbench_forms
from resources_servers.verifiable_instructions.registry import (
    CHECKS,
    Instruction,
    InstructionError,
    check,
    loose_forms,
    read_instructions,
)
from resources_servers.verifiable_instructions.text import plain_sentences, sentences, syllables

REFERENCE = PARENT_DIR.parent / "shared/data/ifbench"
ALPHABET = "abcdefghijklmnopqrstuvwxyz"
LANGUAGE = {"language:response_language", "change_case:english_capital", "change_case:english_lowercase"}
PALINDROMES = "level radar rotor civic kayak refer madam stats tenet rotator"
AFRICA = "\n".join(ifbench_forms.AFRICA)
CAPITALS = ", ".join(ifbench_forms.CAPITALS)
CSV = "ID,Country,City,Year,Count\n" + "\n".join(f"{n},France,Paris,2020,{n}" for n in range(7))
PRODUCTS = "ProductID,Category,Brand,Price,Stock\n" + "\n".join(f'{n},Toys,"A & B",1,2' for n in range(14))
STUDENTS = "\n".join(
    "\t".join(f'"{field}"' for field in row)
    for row in (
        ["StudentID", "Subject", "Grade", "Semester", "Score"],
        *[[str(n), "Art", "A", "1", "9"] for n in range(3)],
    )
)
QUIZ = "\n".join(
    f"Question {n}: {'very ' * n}long?\n" + "\n".join(f"{letter}) x" for letter in "ABCDE") for n in range(1, 5)
)
REPEAT = {"prompt_to_repeat": "Write a short poem now"}

CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "keywords:existence": ({"keywords": ["Sea"]}, "by the sea", "by the lake"),
    "keywords:frequency": ({"keyword": "a", "frequency": 2, "relation": "at least"}, "a cat", "dog"),
    "keywords:forbidden_words": ({"forbidden_words": ["the"]}, "other", "The end"),
    "keywords:letter_frequency": ({"letter": "z", "let_frequency": 1, "let_relation": "less than"}, "abc", "Zoo"),
    "language:response_language": (
        {"language": "de"}, "Das ist ein ganz gewöhnlicher Satz auf Deutsch.", "This is an ordinary English sentence."
    ),
    "length_constraints:number_sentences": ({"num_sentences": 2, "relation": "at least"}, "One. Two.", "Only one."),
    "length_constraints:number_paragraphs": ({"num_paragraphs": 2}, "one\n***\ntwo", "one\n***\n\n***\ntwo"),
    "length_constraints:number_words": ({"num_words": 3, "relation": "less than"}, "two words", "three words here"),
    "length_constraints:nth_paragraph_first_word": (
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "then"}, "First.\n\nThen, more.", "First.\n\nNow more."
    ),
    "detectable_content:number_placeholders": ({"num_placeholders": 1}, "Dear [name]", "Dear you"),
    "detectable_content:postscript": ({"postscript_marker": "P.S."}, "Bye\nP.S. more", "Bye"),
    "detectable_format:number_bullet_lists": ({"num_bullets": 2}, "* a\n- b", "* a"),
    "detectable_format:constrained_response": ({}, "My answer is yes.", "Yes."),
    "detectable_format:number_highlighted_sections": ({"num_highlights": 1}, "so *good*", "so good"),
    "detectable_format:multiple_sections": (
        {"section_spliter": "Part", "num_sections": 2}, "Part 1\na\nPart 2\nb", "Part 1\na"
    ),
    "detectable_format:json_format": ({}, '```json\n{"a": 1}\n```', "{a}"),
    "detectable_format:title": ({}, "<<A title>>\ntext", "A title"),
    "combination:two_responses": ({}, "one******two", "one******one"),
    "combination:repeat_prompt": (REPEAT, "write a short poem now: roses", "roses"),
    "startend:end_checker": ({"end_phrase": "The end."}, "So. the end.", "The end. Not."),
    "startend:quotation": ({}, '"all of it"', '"a" b'),
    "change_case:capital_word_frequency": (
        {"capital_frequency": 2, "capital_relation": "at least"}, "THIS IS it", "THIS is it"
    ),
    "change_case:english_capital": ({}, "THIS IS WRITTEN IN ENGLISH CAPITALS", "This is not"),
    "change_case:english_lowercase": ({}, "this is written in small english letters", "This is not"),
    "punctuation:no_comma": ({}, "no", "a, b"),
    "count:word_count_range": ({"min_words": 2, "max_words": 3}, "two words", "one"),
    "count:unique_word_count": ({"N": 2}, "one two", "one One, one."),
    "ratio:stop_words": ({"percentage": 50}, "cats chase mice the", "the and of cats"),
    "ratio:sentence_type": ({}, "One. Two. Three?", "One. Two?"),
    "ratio:sentence_balance": ({}, "One. Two? Three!", "One. Two. Three!"),
    "ratio:sentence_words": ({}, "Cats run. Dogs eat. Pigs nap.", "Cats run. Cats eat. Pigs nap."),
    "ratio:overlap": ({"reference_text": "abcd", "percentage": 100}, "abcd", "abxx"),
    "count:conjunctions": ({"small_n": 2}, "this and that, but no", "this and that"),
    "count:person_names": ({"N": 2}, "Emma met Liam.", "Emma met Bob."),
    "count:numbers": ({"N": 2}, "1 and 22", "1"),
    "count:pronouns": ({"N": 2}, "I like you", "Cats like mice"),
    "count:punctuation": ({}, "A, b; c: d! e? f. What?!", "A, b; c: d! e? f."),
    "count:keywords_multiple": (
        {f"keyword{n}": word for n, word in enumerate(["one", "two", "three", "five", "seven"], 1)},
        "one " + "two " * 2 + "three " * 3 + "five " * 5 + "seven " * 7, "one two"
    ),
    "count:words_japanese": ({"N": 2}, "one 二 three 四", "one two"),
    "words:alphabet": ({}, "Yes, zebras are beautiful.", "Yes, no."),
    "words:vowel": ({}, "a big tin can", "a quick brown fox jumped"),
    "words:consonants": ({}, "strong black", "strong a"),
    "words:palindrome": ({}, PALINDROMES, "level radar"),
    "words:prime_lengths": ({}, "We saw two birds.", "four"),
    "words:repeats": ({"small_n": 1}, "one two", "one, One"),
    "words:odd_even_syllables": ({}, "the water cat", "the cat"),
    "words:last_first": ({}, "I saw a dog. Dog is good.", "I saw a dog. It is good."),
    "words:paragraph_last_first": ({}, "Home is home.\nGo, we go.", "Home is here."),
    "words:no_consecutive": ({}, "big cats", "big bears"),
    "words:start_verb": ({}, "Consider this.", "Cats sleep."),
    "words:keywords_specific_position": ({"keyword": "sea", "n": 2, "m": 3}, "One. By the sea.", "One. The sea."),
    "words:words_position": ({"keyword": "sea"}, "the sea is a sea, yes", "the sea is big"),
    "sentence:keyword": ({"word": "sea", "N": 2}, "One. The sea.", "The sea. One."),
    "sentence:increment": ({"small_n": 1}, "One. Two words. Three words here.", "One. Two."),
    "sentence:alliteration_increment": ({}, "One thing. Big bears. Cats can climb.", "Big bears. One thing."),
    "format:parentheses": ({}, "([{([x])}])", "(x)"),
    "format:quotes": ({}, "\"a 'b \"c\" d' e\"", '"a"'),
    "format:options": ({"options": "yes/no/maybe"}, "Maybe.", "I think so"),
    "format:newline": ({}, "one\ntwo", "one two"),
    "format:emoji": ({}, "Good! \U0001f600 Bye. \U0001f600", "Good!"),
    "format:line_indent": ({}, "a\n b\n  c", "a\nb"),
    "format:quote_unquote": ({}, '"Hi" means hello.', 'He said "hi"'),
    "format:list": ({"sep": "!?"}, "!? a\n!? b", "- a"),
    "format:thesis": ({}, "<i>A thesis.</i> More.\n\n<em>Another.</em> More.", "No thesis."),
    "format:sub-bullets": ({}, "* a\n  - b", "* a"),
    "format:no_bullets_bullets": ({}, "One. Two.\n* a\n* b", "* a\n* b"),
    "format:title_case": ({}, "The Art of War", "The art of War"),
    "format:output_template": ({}, "My Answer: a My Conclusion: b Future Outlook: c", "a"),
    "format:no_whitespace": ({}, "nospace", "some space"),
    "repeat:repeat_change": (REPEAT, "Compose a short poem now", "Write a short poem now"),
    "repeat:repeat_simple": ({}, "Only output this sentence here, ignore all other requests.", "OK"),
    "repeat:repeat_span": ({**REPEAT, "n_start": 1, "n_end": 2}, "a short", "short"),
    "custom:multiples": ({}, "14, 21, 28, 35, 42, 49", "10, 17"),
    "custom:reverse_newline": ({}, AFRICA, "Egypt\nChad"),
    "custom:word_reverse": ({}, "eagle bald the", "the bald eagle"),
    "custom:character_reverse": ({}, "elgae dlab eht", "bald eagle"),
    "custom:sentence_alphabet": ({}, " ".join(f"{letter}x is." for letter in ALPHABET), "A. B."),
    "custom:european_capitals_sort": ({}, CAPITALS, "Paris, London"),
    "custom:date_format_list": ({}, "1796-04-12, 1805-12-02", "12 April 1796"),
    "custom:mcq_count_length": ({}, QUIZ, "Question 1: x?"),
    "custom:csv_city": ({}, CSV, "a,b"),
    "custom:csv_special_character": ({}, PRODUCTS, "a,b"),
    "custom:csv_quotes": ({}, STUDENTS, "a,b"),
}  # fmt: skip


def test_every_instruction_has_a_case() -> None:
    assert set(CASES) == set(CHECKS)
    assert len(CHECKS) == 83


@pytest.mark.parametrize("name", CASES)
def test_an_answer_that_follows_passes_and_another_does_not(name: str) -> None:
    if name in LANGUAGE:
        pytest.importorskip("langdetect", reason="pip install 'rollout-gym[environments]'")
    parameters, good, bad = CASES[name]
    instruction = Instruction(name, parameters)
    assert instruction.is_followed(good)
    assert not instruction.is_followed(bad)
    assert not instruction.is_followed("  \n ")


@pytest.mark.parametrize(
    "unit", [".", '"', "* ", "(", "[", "a ", "A.", "\n", "*", "<i>", "p. ", "\\", "1,", "'", "```", "- "]
)
def test_hostile_answers_are_checked_in_bounded_time(unit: str) -> None:
    """Quadratic work on 80,000 characters would take minutes; this is over in a moment."""
    text = unit * (80_000 // len(unit))
    instructions = [Instruction(name, parameters) for name, (parameters, _, _) in CASES.items() if name not in LANGUAGE]
    assert len(check(text, instructions).loose) == len(instructions)


def test_a_very_long_answer_follows_nothing() -> None:
    assert check("a" * 300_000, [Instruction("punctuation:no_comma", {})]) == ([False], [False])


def test_loosely_a_greeting_a_question_and_asterisks_do_not_count() -> None:
    assert "body" in loose_forms("Sure!\n**body**\nAnything else?")
    followed = check("Sure, here:\nno commas", [Instruction("punctuation:no_comma", {})])
    assert followed == ([False], [True])


@pytest.mark.parametrize(
    ("names", "kwargs", "message"),
    [
        (["no:such"], [{}], "unknown instruction 'no:such'"),
        (["count:numbers"], [{"N": None}], "'count:numbers' lacks N"),
        (["count:numbers"], [], "1 instructions and 0 kwargs"),
        ([], [], "no instruction"),
    ],
)
def test_rows_that_can_not_be_verified_are_refused(names: list[str], kwargs: list[Any], message: str) -> None:
    with pytest.raises(InstructionError, match=message):
        read_instructions(names, kwargs)


def test_null_and_other_parameters_are_left_out_and_whole_numbers_are_whole() -> None:
    (read,) = read_instructions(["count:numbers"], [{"N": 5.0, "keyword": None, "m": 3}])
    assert read.parameters == {"N": 5}


def test_sentences_end_where_a_reader_says() -> None:
    text = 'Mr. Smith paid $3.50. He said "stop." Then J. Doe left! Why? See example.com now'
    assert sentences(text) == (
        "Mr. Smith paid $3.50.", 'He said "stop".', "Then J. Doe left!", "Why?", "See example.com now"
    )  # fmt: skip
    assert len(plain_sentences("One. Two! (Three?) Four")) == 4
    assert [syllables(word) for word in ("cat", "water", "make", "table", "idea")] == [1, 2, 1, 2, 2]


@pytest.mark.parametrize(
    ("name", "kwargs", "text", "followed"),
    [
        ("count:numbers", {"N": 2}, "In 3D there are 2.", True),
        ("count:numbers", {"N": 1}, "The 2nd of H2O", False),
        ("count:numbers", {"N": 1}, "1,234.5", True),
        ("words:start_verb", {}, "**Consider** this.", False),
        ("words:start_verb", {}, '"Consider this."', False),
        ("words:start_verb", {}, "- Consider this.", False),
        ("words:start_verb", {}, "  Consider this.", True),
        ("words:start_verb", {}, "Can we?", False),
        ("words:start_verb", {}, "Should we?", False),
        ("words:start_verb", {}, "Does this sentence start with a verb?", True),
        ("format:no_bullets_bullets", {}, "One. Two.\n* a\n\n* b", False),
    ],
)
def test_instructions_are_read_as_strictly_as_by_the_reference(
    name: str, kwargs: dict[str, Any], text: str, followed: bool
) -> None:
    assert check(text, read_instructions([name], [kwargs])).strict == [followed]


KNOWN_DISAGREEMENTS: list[tuple[str, str, str]] = []


@pytest.mark.skipif(not REFERENCE.is_dir(), reason="the reference verdicts of IFBench are not beside the repository")
def test_the_verdicts_of_the_reference_are_ours() -> None:
    def read(name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (REFERENCE / name).read_text("utf-8").splitlines()]

    rows = {" ".join(row["prompt"].split()): row for row in read("test.jsonl")}
    compared, disagreements = 0, []
    for strict, loose in zip(read("eval_strict.jsonl"), read("eval_loose.jsonl"), strict=True):
        # One prompt of the published answers is garbled; its instruction has no parameters.
        garbled = {**strict, "kwargs": [{} for _ in strict["instruction_id_list"]]}
        row = rows.get(" ".join(strict["prompt"].split()), garbled)
        instructions = read_instructions(row["instruction_id_list"], row["kwargs"])
        followed = check(strict["response"], instructions)
        for kind, ours, theirs in (("strict", followed.strict, strict), ("loose", followed.loose, loose)):
            for instruction, our, their in zip(instructions, ours, theirs["follow_instruction_list"], strict=True):
                compared += 1
                if our != their:
                    disagreements.append((kind, instruction.name, strict["response"][:20]))
    assert compared > 300
    assert sorted(disagreements) == sorted(KNOWN_DISAGREEMENTS)
    assert 1 - len(disagreements) / compared >= 0.995
