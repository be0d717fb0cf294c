"""Where rollouts run: in this process or over HTTP (``rollouts.attempt``), or in worker processes (this package)."""
