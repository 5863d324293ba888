"""The registry of controls: what each would detect, the effect that it would have had, and what was
read.

Each study declares its controls in a module of its own, over the rows of its tables alone.
"""
