"""Every model call of an attempt, kept once: what was read, what was sampled, and which call it continues."""
