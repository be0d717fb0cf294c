"""What a rollout spent its time on: the calls it made, one step each, and what can be told from them."""
