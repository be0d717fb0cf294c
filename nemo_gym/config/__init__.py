"""Command line, YAML files and environment become one validated configuration.

`parse` goes the whole way in one function; `instances` is what the rest of the program reads from the result.
"""
