#!/bin/sh
# Writes 1 if all commands succeed, else 0.
check() { [ "$(id -u)" = 0 ] && [ -s /app/user.txt ] && [ "$(cat /app/user.txt)" != 0 ]; }
if check; then echo 1 >/logs/verifier/reward.txt; else echo 0 >/logs/verifier/reward.txt; fi
