#!/bin/sh
# Writes 1 if all commands succeed, else 0.
check() { [ "$(cat /work/greeting.txt)" = "$EXPECTED" ] && [ "$PLAIN" = "as it is" ] && [ -z "$TARGET" ]; }
if check; then echo 1 >/logs/verifier/reward.txt; else echo 0 >/logs/verifier/reward.txt; fi
