"""Where rollouts run: over a client (``rollouts.attempt``), in worker processes, or on a cluster (this package)."""
