"""Where a rollout runs: here and over HTTP through a client (``rollouts.attempt``), or in worker processes."""
