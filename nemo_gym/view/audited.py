"""What an audit found in a run, for the page."""

from collections import Counter
from itertools import islice
from typing import Any, Final

from nemo_gym.audit.rollout_audit import read_audit
from nemo_gym.view.library import ViewedRun

SHOWN: Final = 500  # findings; the others can be found by filtering the table


def run_audit(run: ViewedRun) -> dict[str, Any]:
    """The findings of a run, most frequent rules first; not audited if there is no file of an audit."""
    rules = Counter(entry.rule for entry in read_audit(run.path))
    return {
        "name": run.name,
        "audited": run.files.audit.is_file(),
        "found": rules.total(),
        "rules": rules.most_common(),
        "findings": [entry._asdict() for entry in islice(read_audit(run.path), SHOWN)],
    }
