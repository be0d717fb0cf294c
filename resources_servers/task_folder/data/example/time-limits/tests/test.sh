#!/bin/sh
# Writes 1 if all commands succeed, else 0.
check() { seq 1000 | cmp -s - /app/numbers.txt; }
if check; then echo 1 >/logs/verifier/reward.txt; else echo 0 >/logs/verifier/reward.txt; fi
