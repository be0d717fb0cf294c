"""``python -m nemo_gym.cli`` does the same as ``ng``."""

import sys

from nemo_gym.cli import start_program

sys.exit(start_program())
