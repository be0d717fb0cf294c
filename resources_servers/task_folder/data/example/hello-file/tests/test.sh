#!/bin/sh
# Writes 1 if all commands succeed, else 0.
check() { [ "$(cat /app/hello.txt)" = hello ]; }
if check; then echo 1 >/logs/verifier/reward.txt; else echo 0 >/logs/verifier/reward.txt; fi
