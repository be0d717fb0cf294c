"""Sampling profiles of the servers' code, and the files that show them."""
