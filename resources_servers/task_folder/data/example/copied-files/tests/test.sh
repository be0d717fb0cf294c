#!/bin/sh
# Writes 1 if all commands succeed, else 0.
check() { [ "$(cat /app/out/sum.txt)" = 10 ] && [ "$(cat /app/files.txt)" = 2 ] && [ -f "/app/made by an argument list" ]; }
if check; then echo 1 >/logs/verifier/reward.txt; else echo 0 >/logs/verifier/reward.txt; fi
