"""Print the average of every numeric field of a rollout file, per agent.

python scripts/print_aggregate_results.py +jsonl_fpath=results/rollouts.jsonl
"""

import json
import sys
from pathlib import Path

from nemo_gym.errors import ConfigError
from nemo_gym.metrics.statistics import AgentAverages, average_fields
from nemo_gym.schemas.record import read_records

USAGE = "usage: python scripts/print_aggregate_results.py +jsonl_fpath=FILE"


def averages_of(path: Path) -> dict[str, AgentAverages]:
    """Average the numeric fields of a rollout file, by agent."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such file", hint="check the path given with +jsonl_fpath=")
    return average_fields(line.record for line in read_records(path))


def main(arguments: list[str]) -> int:
    """Print the averages of the file named in the arguments."""
    given = dict(argument.lstrip("+").partition("=")[::2] for argument in arguments)
    if set(given) != {"jsonl_fpath"}:
        print(USAGE, file=sys.stderr)
        return 2
    try:
        agents = averages_of(Path(given["jsonl_fpath"]))
    except ConfigError as error:
        print(f"error: {error}\n\nhint: {error.hint}", file=sys.stderr)
        return 1
    for name, agent in agents.items():
        print(f"{name}: {agent.count} rollouts")
        print(json.dumps(agent.averages, indent=4))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
