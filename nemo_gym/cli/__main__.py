"""``python -m nemo_gym.cli`` is ``ng``."""

import sys

from nemo_gym.cli.main import main

sys.exit(main())
