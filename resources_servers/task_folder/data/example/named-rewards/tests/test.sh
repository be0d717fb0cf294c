#!/bin/sh
# One reward for each file, and their mean as the main one.
right=0
for letter in a b c; do
  if [ "$(cat "/app/$letter.txt" 2>/dev/null)" = "$letter" ]; then right=$((right + 1)); fi
done
all=0; [ "$right" = 3 ] && all=1
printf '{"reward": %s, "files": %s}' "$all" "$right" >/logs/verifier/reward.json
