#!/bin/sh
# Writes 1 if all commands succeed, else 0.
check() { [ -f /srv/ready ] && [ ! -e /app/ready ]; }
if check; then echo 1 >/logs/verifier/reward.txt; else echo 0 >/logs/verifier/reward.txt; fi
