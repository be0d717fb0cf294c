"""Writes sql_queries tasks: ``python -m resources_servers.sql_queries.generate --n 100 --seed 0``.

Difficulty 1 reads one table, 2 groups or orders it, 3 joins two. Every task has three databases with the same tables
but different rows: a query that is right by chance on one is wrong on another.
"""

import itertools
from collections.abc import Iterator
from random import Random
from typing import Any, Final

from nemo_gym.data.task_generator import Row, TaskGenerator
from resources_servers.sql_queries.questions import Domain, Question, load_domains

DATABASES: Final = 3
VARIANTS: Final = 12
SYSTEM: Final = "Answer the question with one SQLite query. Return the columns that are asked for, in that order."
# A worked example, given as an earlier turn: a small model copies its form.
EXAMPLE: Final = (
    "CREATE TABLE pets (id INTEGER PRIMARY KEY, kind TEXT, age INTEGER);\n\nHow many dogs are older than 3?",
    "SELECT COUNT(*) FROM pets WHERE kind = 'dog' AND age > 3",
)
TOOL: Final = {
    "type": "function",
    "name": "run_query",
    "description": "Runs a query and returns its first rows.",
    "parameters": {
        "type": "object",
        "properties": {"query": {"type": "string"}},
        "required": ["query"],
        "additionalProperties": False,
    },
    "strict": True,
}


def draw(rng: Random, difficulty: int) -> Iterator[Row]:
    """Endless tasks of one difficulty, from all databases in equal parts."""
    domains = load_domains()
    # Many tasks share few databases, so that those who run queries can keep the databases open.
    databases = [[domain.database(Random(seed)) for seed in range(VARIANTS)] for domain in domains]  # noqa: S311 - tasks
    for domain, variants in itertools.cycle(zip(domains, databases, strict=True)):
        choices = [question for question in domain.questions if question.level == difficulty]
        yield _row(rng, domain, rng.choice(choices), variants)


def _row(rng: Random, domain: Domain, question: Question, databases: list[str]) -> Row:
    blanks = {name: rng.choice(values) for name, values in question.blanks.items()}
    text = question.text.format_map(blanks)
    variants = rng.sample(range(VARIANTS), DATABASES)
    prompt = f"{domain.ddl()}\n\n{text}"
    messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
    if question.level < 3:
        messages += [{"role": "user", "content": EXAMPLE[0]}, {"role": "assistant", "content": EXAMPLE[1]}]
    return {
        "responses_create_params": {
            "input": [*messages, {"role": "user", "content": prompt}],
            **({"tools": [TOOL]} if question.level == 3 else {}),
        },
        "difficulty": question.level,
        "question": text,
        "databases": [databases[variant] for variant in variants],
        "reference_query": question.query.format_map(blanks),
        "ordered": question.ordered,
    }


GENERATOR: Final = TaskGenerator("sql_queries", draw, identity=("question",), levels=(1, 2, 3))

if __name__ == "__main__":
    GENERATOR.main()
