"""Writes sql_queries tasks: ``python -m resources_servers.sql_queries.generate --n 100 --seed 0``.

Difficulty 1 reads one table, 2 groups or orders it, 3 joins two. Every task has three databases with the same tables
but different rows: a query that is right by chance on one is wrong on another. A task whose answer is the same on all
of them, such as no rows at all, is left out, because a constant would be right.
"""

import itertools
from collections.abc import Iterator
from random import Random
from typing import Any, Final

from nemo_gym.data.task_generator import Row, TaskGenerator
from resources_servers.sql_queries.database_process import Databases
from resources_servers.sql_queries.questions import Domain, Question, load_domains

DATABASES: Final = 3
VARIANTS: Final = 12
MAX_ROWS: Final = 10_000
MAX_SECONDS: Final = 10.0
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
    opened = Databases()
    for domain, variants in itertools.cycle(zip(domains, databases, strict=True)):
        choices = [question for question in domain.questions if question.level == difficulty]
        row = _row(rng, domain, rng.choice(choices), variants)
        while not _depends_on_data(row, opened):
            row = _row(rng, domain, rng.choice(choices), variants)
        yield row


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


def _depends_on_data(row: Row, opened: Databases) -> bool:
    """Whether the reference query returns different rows from different databases."""
    results = [
        opened.reference("sqlite", script, row["reference_query"], {"max_rows": MAX_ROWS, "seconds": MAX_SECONDS})
        for script in row["databases"]
    ]
    return any(result.difference(results[0], ordered=row["ordered"]) for result in results[1:])


GENERATOR: Final = TaskGenerator("sql_queries", draw, identity=("question",), levels=(1, 2, 3))

if __name__ == "__main__":
    GENERATOR.main()
