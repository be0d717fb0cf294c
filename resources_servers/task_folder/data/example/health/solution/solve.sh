#!/bin/sh
set -e
mv /app/ready .
