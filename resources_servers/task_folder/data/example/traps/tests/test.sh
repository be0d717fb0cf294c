#!/bin/sh
here=$(dirname "$0")
[ ! -e /solution/planted ] && [ ! -e /logs/verifier/reward.txt ] && sh "$here/lib/judge.sh"
