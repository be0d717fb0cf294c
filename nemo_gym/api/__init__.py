"""The Python interface: collect rollouts, read them, and write an environment in one file. ``nemo_gym`` exports it."""
