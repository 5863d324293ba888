"""Two checkpoints of one architecture compared from their weights alone: what changed, in which
component, and against which null.
"""
