"""Profiles of the code of servers."""
