"""Where the time of a rollout goes: its calls are recorded as steps, added up for a run, and explained."""
