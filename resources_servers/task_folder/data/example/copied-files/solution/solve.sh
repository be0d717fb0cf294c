#!/bin/sh
set -e
sum=0; for number in $(find "$DATA" -name "*.txt" -exec cat {} +); do sum=$((sum + number)); done
echo "$sum" >"$OUT/sum.txt"
