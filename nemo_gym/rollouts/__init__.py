"""The life of a rollout, one module for each stage: tasks ─► plan ─► dispatch ─► outcome ─► store ─► aggregate.

For trainers and other programs: ``stream`` and ``stream_groups`` in ``nemo_gym.rollouts.stream`` run rows against a Gym
and yield outcomes as rollouts end (see ``docs/collection.md``).
"""
