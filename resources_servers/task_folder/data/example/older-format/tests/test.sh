#!/bin/sh
cp /tests/expected.txt /tmp/expected.txt
if cmp -s /tmp/expected.txt /app/words.txt; then echo 1; else echo 0; fi >/logs/verifier/reward.txt
exit 3
