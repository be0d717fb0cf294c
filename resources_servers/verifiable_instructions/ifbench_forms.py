# ruff: noqa: D103, SIM905 - names say it all, and lists of words are easier to read as text
"""The kinds of instructions of IFBench about the form of the answer and repetition, and those for single prompts."""

import csv
import io
import itertools
import re
from collections.abc import Callable
from typing import Final

from resources_servers.verifiable_instructions.text import (
    EDGE,
    STOP_WORDS,
    is_emoji,
    sentences,
    without_punctuation,
)

CAPITALS: Final = (
    "Reykjavik Helsinki Oslo Tallinn Stockholm Riga Moscow Copenhagen Vilnius Minsk Dublin Berlin Amsterdam Warsaw "
    "London Brussels Kyiv Prague Luxembourg Paris Vienna Bratislava Budapest Vaduz Chisinau Bern Ljubljana Zagreb"
).split(" ")
AFRICA: Final = (
    "Zimbabwe|Zambia|Uganda|Tunisia|Togo|Tanzania|Sudan|South Sudan|South Africa|Somalia|Sierra Leone|Seychelles|"
    "Senegal|Sao Tome and Principe|Rwanda|Nigeria|Niger|Namibia|Mozambique|Morocco|Mauritius|Mauritania|Mali|Malawi|"
    "Madagascar|Libya|Liberia|Lesotho|Kenya|Ivory Coast|Guinea-Bissau|Guinea|Ghana|Gambia|Gabon|Ethiopia|Eswatini|"
    "Eritrea|Equatorial Guinea|Egypt|Djibouti|Democratic Republic of the Congo|Comoros|Chad|Central African Republic|"
    "Cape Verde|Cameroon|Burundi|Burkina Faso|Botswana|Benin|Angola|Algeria"
).split("|")
ONLY_SENTENCE: Final = "only output this sentence here, ignore all other requests."
_CLOSING: Final = {")": "(", "]": "[", "}": "{"}
_QUOTED: Final = re.compile(r'"[^"]*"')
_ITALICS: Final = re.compile(r"<(?:i|em)>[^<]{1,2000}</(?:i|em)>")


def parentheses(text: str) -> bool:
    stack: list[str] = []
    deepest = 0
    for character in text:
        if character in "([{":
            stack.append(character)
            deepest = max(deepest, len(stack))
        elif character in _CLOSING:
            if not stack or stack.pop() != _CLOSING[character]:
                stack, deepest = [], 0
            elif deepest >= 5:
                return True
    return False


def quotes(text: str) -> bool:
    text = text.replace("\u201c", '"').replace("\u201d", '"').replace("\u2018", "'").replace("\u2019", "'")
    # An apostrophe counts as a quotation mark, as in the benchmark's own check.
    stack: list[str] = []
    deepest = 0
    for character in text:
        if character not in "\"'":
            continue
        if stack and stack[-1] == character:
            stack.pop()
            if deepest - len(stack) >= 3:
                return True
        else:
            stack.append(character)
            deepest = len(stack)
    return False


def options(text: str, options: str) -> bool:
    if "/" not in options and " or " not in options:
        # Options such as "a), b)" are marks: nothing may be missing or added.
        return text.strip() in {option.strip() for option in options.split(",")}
    given = text.strip(EDGE + "\n").lower()
    return any(option.strip(EDGE).lower() == given for option in re.split(r"/| or ", options))


def newline(text: str) -> bool:
    return len([line for line in text.split("\n") if line.strip()]) == len(text.split())


def emoji(text: str) -> bool:
    found = [without_punctuation(sentence).strip() for sentence in sentences(text)]
    for place, sentence in enumerate(found):
        ends = is_emoji(sentence[-1:]) or is_emoji(sentence[-2:])
        # An emoji after the mark belongs to the sentence before it.
        follows = place + 1 < len(found) and is_emoji(found[place + 1][:1])
        if not (ends or follows):
            return False
    return bool(found)


def line_indent(text: str) -> bool:
    indents = [len(line) - len(line.lstrip(" ")) for line in text.split("\n") if line.strip()]
    return all(left < right for left, right in itertools.pairwise(indents))


def quote_unquote(text: str) -> bool:
    text = text.replace("\u201c", '"').replace("\u201d", '"')
    return all(re.search(r"\w", rest) for rest in _QUOTED.split(text)[1:])


def list_separator(text: str, sep: str) -> bool:
    return text.count(sep) >= 2


def thesis(text: str) -> bool:
    sections = [section for section in re.split(r"\n(?=#{1,6} )|\n\s*\n", text.strip()) if section.strip()]
    starts = [re.sub(r"\A#{1,6} [^\n]*\n", "", section).strip() for section in sections]
    return bool(starts) and all(_ITALICS.match(start) for start in starts)


def sub_bullets(text: str) -> bool:
    return all("-" in bullet for bullet in text.split("*")[1:])


def no_bullets_bullets(text: str) -> bool:
    before, _, bullets = text.partition("\n*")
    ends = len(re.findall(r"\.(?:\s|\Z)", before))
    lines = [line.strip() for line in bullets.split("\n")[1:]]
    return ends >= 2 and bool(lines) and all(line.startswith("*") for line in lines)


def title_case(text: str) -> bool:
    found = re.findall(r"[A-Za-z][A-Za-z']*", text)
    minor = STOP_WORDS | {"within", "without", "via", "per", "upon", "among", "toward", "towards", "amid"}
    return all(word[0].isupper() or word.lower() in minor or len(word) == 1 for word in found)


def output_template(text: str) -> bool:
    return all(label in text for label in ("My Answer:", "My Conclusion:", "Future Outlook:"))


def no_whitespace(text: str) -> bool:
    return len(text.split()) == 1 and text == text.strip()


def repeat_change(text: str, prompt_to_repeat: str) -> bool:
    given, wanted = text.strip().lower().split(), prompt_to_repeat.strip().lower().split()
    return given[1:] == wanted[1:] and given[:1] != wanted[:1]


def repeat_simple(text: str) -> bool:
    return text.strip().lower() == ONLY_SENTENCE


def repeat_span(text: str, prompt_to_repeat: str, n_start: int, n_end: int) -> bool:
    return text.strip().lower().split() == prompt_to_repeat.strip().lower().split()[n_start : n_end + 1]


def multiples(text: str) -> bool:
    return re.findall(r"\d+", text) == ["14", "21", "28", "35", "42", "49"]


def reverse_newline(text: str) -> bool:
    lines = [without_punctuation(line).strip() for line in text.strip().split("\n") if line.strip()]
    named = {without_punctuation(country) for country in AFRICA}
    found = [line for line in lines if line in named]
    return len(found) >= 50 and len(found) == len(lines) and found == sorted(found, reverse=True)


def word_reverse(text: str) -> bool:
    return "bald eagle" in " ".join(reversed(without_punctuation(text.lower()).split()))


def character_reverse(text: str) -> bool:
    return "elgae dlab" in text.lower()


def sentence_alphabet(text: str) -> bool:
    first = "".join(sentence.lstrip(EDGE)[:1].lower() for sentence in sentences(text))
    return first == "abcdefghijklmnopqrstuvwxyz"


def european_capitals_sort(text: str) -> bool:
    given = [city.strip(EDGE + "\n") for city in text.translate(str.maketrans("íî", "ii")).split(",")]
    return given == CAPITALS


def date_format_list(text: str) -> bool:
    return all(
        re.fullmatch(r"\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])", part.strip()) for part in text.split(",")
    )


def mcq_count_length(text: str) -> bool:
    questions = [part.strip() for part in re.split(r"(?m)^Question", text.strip())[1:]]
    stems = [len(re.split(r"(?m)^\s*\(?[A-Ea-e1-5][).]", question)[0]) for question in questions]
    choices = [len(re.findall(r"(?m)^\s*\(?[A-Ea-e][).]", question)) for question in questions]
    return choices == [5] * 4 and all(left < right for left, right in itertools.pairwise(stems))


def csv_city(text: str) -> bool:
    rows = _rows(text, ",")
    return len(rows) == 8 and rows[0] == ["ID", "Country", "City", "Year", "Count"] and _is_table(rows)


def csv_special_character(text: str) -> bool:
    rows = _rows(text, ",")
    header = ["ProductID", "Category", "Brand", "Price", "Stock"]
    quoted = re.search(r'"[^"\n]*[^\w\s"][^"\n]*"', text) is not None
    return len(rows) == 15 and rows[0] == header and _is_table(rows) and quoted


def csv_quotes(text: str) -> bool:
    rows = _rows(text, "\t")
    header = ["StudentID", "Subject", "Grade", "Semester", "Score"]
    fields = [field.strip() for line in text.strip().split("\n") for field in line.split("\t")]
    return len(rows) == 4 and rows[0] == header and _is_table(rows) and all(re.fullmatch(r'"[^"]*"', f) for f in fields)


def _rows(text: str, delimiter: str) -> list[list[str]]:
    # The csv module raises an error for longer fields.
    if max((len(line) for line in text.split("\n")), default=0) > csv.field_size_limit():
        return []
    return [
        [field.strip() for field in row]
        for row in csv.reader(io.StringIO(text), delimiter=delimiter, skipinitialspace=True)
    ]


def _is_table(rows: list[list[str]]) -> bool:
    return len({len(row) for row in rows}) == 1


CHECKS: Final[dict[str, Callable[..., bool]]] = {
    "format:parentheses": parentheses,
    "format:quotes": quotes,
    "format:options": options,
    "format:newline": newline,
    "format:emoji": emoji,
    "format:line_indent": line_indent,
    "format:quote_unquote": quote_unquote,
    "format:list": list_separator,
    "format:thesis": thesis,
    "format:sub-bullets": sub_bullets,
    "format:no_bullets_bullets": no_bullets_bullets,
    "format:title_case": title_case,
    "format:output_template": output_template,
    "format:no_whitespace": no_whitespace,
    "repeat:repeat_change": repeat_change,
    "repeat:repeat_simple": repeat_simple,
    "repeat:repeat_span": repeat_span,
    "custom:multiples": multiples,
    "custom:reverse_newline": reverse_newline,
    "custom:word_reverse": word_reverse,
    "custom:character_reverse": character_reverse,
    "custom:sentence_alphabet": sentence_alphabet,
    "custom:european_capitals_sort": european_capitals_sort,
    "custom:date_format_list": date_format_list,
    "custom:mcq_count_length": mcq_count_length,
    "custom:csv_city": csv_city,
    "custom:csv_special_character": csv_special_character,
    "custom:csv_quotes": csv_quotes,
}
