"""Tables and figures of the comparison of checkpoints."""
