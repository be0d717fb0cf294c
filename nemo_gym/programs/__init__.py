"""Programs as agents: how they are installed, started, watched and ended, and what is left when they have ended."""
