"""Command line, YAML files and environment become one validated configuration.

`parse` is the whole way in one function; `instances` is what the rest of the program reads out of the result.
"""
