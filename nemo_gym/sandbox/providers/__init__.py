"""The names of NeMo Gym's sandbox providers. The work is done in ``nemo_gym.sandbox``."""
