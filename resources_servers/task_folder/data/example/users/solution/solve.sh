#!/bin/sh
set -e
id -u >/app/user.txt
