#!/bin/sh
set -e
for letter in a b c; do echo "$letter" >"$letter.txt"; done
