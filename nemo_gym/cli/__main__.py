"""``python -m nemo_gym.cli`` does the same as ``ng``."""

import sys

from nemo_gym.cli.main import main

sys.exit(main())
