#!/bin/sh
# Writes 1 if all commands succeed, else 0.
check() { [ "$(wc -c </app/zeros.bin)" = 2000000 ] && [ -z "$(tr -d "\\0" </app/zeros.bin | head -c 1)" ]; }
if check; then echo 1 >/logs/verifier/reward.txt; else echo 0 >/logs/verifier/reward.txt; fi
