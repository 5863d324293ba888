"""One module for each verb of the command: its arguments, the library's function that does it, and
what it says.

A module of a verb has `add_arguments(parser)` and `run(options) -> int`, and loads its library
inside `run`: the parser of all verbs must be quick to build.
"""
