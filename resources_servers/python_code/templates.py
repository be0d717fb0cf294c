# ruff: noqa: E501, PLW0108 - a table is easier to read in long lines
"""Programming tasks as data: a question, the code that solves it, and what it is tried with.

Expected values are never written down; they are what the code gives, so question and tests can't disagree. Blanks in
``{braces}`` are filled at random, in the question and in the code alike. Level 1 is one step, level 2 a loop with a
thought, level 3 an algorithm.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

Draw = Callable[[Random], list[Any]]
WORDS: Final = ("apple", "bread", "cloud", "dog", "eagle", "fish", "grape", "house", "island", "moon", "river", "stone")
LETTERS: Final = "aeorstn"


@dataclass(frozen=True, slots=True)
class Template:
    """One kind of task. ``draw`` makes the arguments of a call or, for a program, the lines of its input."""

    name: str
    level: int
    question: str
    code: str
    draw: Draw
    blanks: dict[str, Sequence[Any]] = field(default_factory=dict)


def numbers(rng: Random, low: int = -20, high: int = 40, most: int = 9) -> list[int]:
    """A short list of numbers."""
    return [rng.randint(low, high) for _ in range(rng.randint(1, most))]


def words(rng: Random, most: int = 7) -> str:
    """A short text."""
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, most)))


def brackets(rng: Random) -> str:
    """Brackets, balanced more often than by chance."""
    text = "".join(rng.choice("([{)]}") for _ in range(rng.randint(0, 4)))
    return rng.choice(("()", "[{}]", "([)]", "{[()]}", "((", "")) + rng.choice((text, "", "()"))


FUNCTIONS: Final = (
    Template("scale", 1, "returns {a} times `n` plus {b}", "def scale(n):\n    return {a} * n + {b}",
             lambda rng: [rng.randint(-50, 50)], {"a": range(2, 20), "b": range(1, 30)}),
    Template("difference", 1, "returns `x` minus `y`, times {a}", "def difference(x, y):\n    return (x - y) * {a}",
             lambda rng: [rng.randint(0, 50), rng.randint(0, 50)], {"a": range(2, 30)}),
    Template("is_multiple", 1, "returns True if `n` is a multiple of {a}, else False",
             "def is_multiple(n):\n    return n % {a} == 0", lambda rng: [rng.randint(0, 120)], {"a": range(2, 20)}),
    Template("keep_above", 1, "returns the numbers of the list `numbers` that are greater than {a}, in the same order",
             "def keep_above(numbers):\n    return [n for n in numbers if n > {a}]", lambda rng: [numbers(rng)], {"a": range(25)}),
    Template("sum_above", 1, "returns the sum of the numbers in the list `numbers` that are greater than {a}",
             "def sum_above(numbers):\n    return sum(n for n in numbers if n > {a})", lambda rng: [numbers(rng)], {"a": range(25)}),
    Template("count_letter", 1, "returns how often the letter '{c}' occurs in the string `text`",
             "def count_letter(text):\n    return text.count('{c}')", lambda rng: [words(rng)], {"c": LETTERS}),
    Template("multiples", 1, "returns the list of the first `n` positive multiples of {a}",
             "def multiples(n):\n    return [{a} * i for i in range(1, n + 1)]", lambda rng: [rng.randint(0, 9)], {"a": range(2, 30)}),
    Template("repeat", 1, "returns the string `text` {a} times in a row, separated by '{s}'",
             "def repeat(text):\n    return '{s}'.join([text] * {a})", lambda rng: [rng.choice(WORDS)], {"a": range(2, 7), "s": "-+/*"}),
    Template("starts", 1, "returns the first {a} characters of the string `text` in capital letters",
             "def starts(text):\n    return text[:{a}].upper()", lambda rng: [words(rng)], {"a": range(2, 12)}),
    Template("spread", 1, "returns the largest minus the smallest number of the list `numbers`, plus {a}",
             "def spread(numbers):\n    return max(numbers) - min(numbers) + {a}", lambda rng: [numbers(rng)], {"a": range(1, 30)}),
    Template("long_words", 2, "returns the words of the string `text` with at least {a} letters, sorted, each once",
             "def long_words(text):\n    return sorted({{w for w in text.split() if len(w) >= {a}}})", lambda rng: [words(rng)], {"a": range(4, 6)}),
    Template("rotate", 2, "returns the list `items` rotated to the left by {a} places",
             "def rotate(items):\n    if not items:\n        return []\n    k = {a} % len(items)\n    return items[k:] + items[:k]",
             lambda rng: [numbers(rng)], {"a": range(1, 9)}),
    Template("caesar", 2, "shifts every lower-case letter of the string `text` by {a} places in the alphabet, from z to a, and leaves all else alone",
             "def caesar(text):\n    return ''.join(chr((ord(c) - 97 + {a}) % 26 + 97) if 'a' <= c <= 'z' else c for c in text)",
             lambda rng: [words(rng)], {"a": range(1, 26)}),
    Template("sequence", 2, "returns the first `n` numbers of the sequence that begins with {a} and {b} and in which each further number is the sum of the two before",
             "def sequence(n):\n    s = [{a}, {b}]\n    while len(s) < n:\n        s.append(s[-1] + s[-2])\n    return s[:n]",
             lambda rng: [rng.randint(0, 12)], {"a": range(6), "b": range(1, 9)}),
    Template("digit_sum", 2, "returns the sum of the digits of the non-negative integer `n`, times {a}",
             "def digit_sum(n):\n    return {a} * sum(map(int, str(n)))", lambda rng: [rng.randint(0, 10**6)], {"a": range(2, 40)}),
    Template("nth_largest", 2, "returns the {a}th largest different number of the list `numbers`, or None if there are fewer",
             "def nth_largest(numbers):\n    s = sorted(set(numbers), reverse=True)\n    return s[{a} - 1] if len(s) >= {a} else None",
             lambda rng: [numbers(rng, 0, 12)], {"a": range(4, 8)}),
    Template("to_base", 3, "returns the non-negative integer `n` as a string in base {a}",
             "def to_base(n):\n    digits = ''\n    while n:\n        digits = '0123456789abcdef'[n % {a}] + digits\n        n //= {a}\n    return digits or '0'",
             lambda rng: [rng.randint(0, 5000)], {"a": range(2, 17)}),
    Template("balanced", 3, "returns {a} if the round, square and curly brackets of the string `text` are balanced and correctly nested, else {b}",
             "def balanced(text):\n    stack = []\n    for c in text:\n        if c in '([{{':\n            stack.append(c)\n"
             "        elif not stack or stack.pop() + c not in ('()', '[]', '{{}}'):\n            return {b}\n    return {b} if stack else {a}",
             lambda rng: [brackets(rng)], {"a": range(1, 20), "b": range(-9, 0)}),
    Template("longest_run", 3, "returns the length of the longest run of neighbouring numbers in the list `numbers` that differ by at most {a}",
             "def longest_run(numbers):\n    best = run = 1 if numbers else 0\n    for x, y in zip(numbers, numbers[1:]):\n"
             "        run = run + 1 if abs(x - y) <= {a} else 1\n        best = max(best, run)\n    return best",
             lambda rng: [numbers(rng, 0, 20)], {"a": range(1, 12)}),
    Template("coins", 3, "returns the smallest number of coins of the values 1, {a} and {b} that add up to the non-negative integer `n`",
             "def coins(n):\n    best = [0]\n    for i in range(1, n + 1):\n        best.append(1 + min(best[i - c] for c in (1, {a}, {b}) if c <= i))\n    return best[n]",
             lambda rng: [rng.randint(0, 90)], {"a": range(3, 9), "b": range(9, 20)}),
)  # fmt: skip

PROGRAMS: Final = (
    Template("total", 1, "reads one integer from each line of its input and prints their sum plus {a}",
             "import sys\nprint(sum(int(line) for line in sys.stdin) + {a})", lambda rng: numbers(rng), {"a": range(1, 100)}),
    Template("above", 1, "reads one integer from each line of its input and prints those that are greater than {a}, one to a line",
             "import sys\nfor line in sys.stdin:\n    if int(line) > {a}:\n        print(int(line))", lambda rng: numbers(rng), {"a": range(-9, 30)}),
    Template("backwards", 1, "reads one line and prints it backwards, followed by '{s}'",
             "print(input()[::-1] + '{s}')", lambda rng: [words(rng)], {"s": ("!", "?", ".", ";", "...", " end", "<", "/")}),
    Template("times", 1, "reads one integer and prints it times {a}", "print(int(input()) * {a})",
             lambda rng: [rng.randint(-99, 99)], {"a": range(2, 100)}),
    Template("frequencies", 2, "reads one line of words and prints each different word that occurs with its number of occurrences plus {a}, as `word number`, in alphabetical order, one to a line",
             "from collections import Counter\nfor word, n in sorted(Counter(input().split()).items()):\n    print(word, n + {a})",
             lambda rng: [words(rng, 12)], {"a": range(1, 30)}),
    Template("table", 2, "reads an integer n and prints n lines; line i has the first i multiples of {a}, separated by spaces",
             "for i in range(1, int(input()) + 1):\n    print(*({a} * j for j in range(1, i + 1)))", lambda rng: [rng.randint(1, 6)], {"a": range(2, 30)}),
    Template("paths", 3, "reads two integers, rows and columns, from one line and prints the number of ways from the top left to the bottom right cell of such a grid by steps right and down, modulo {a}",
             "import math\nr, c = map(int, input().split())\nprint(math.comb(r + c - 2, r - 1) % {a})",
             lambda rng: [f"{rng.randint(1, 12)} {rng.randint(1, 12)}"], {"a": range(97, 400)}),
)  # fmt: skip

LEVELS: Final = (1, 2, 3)
