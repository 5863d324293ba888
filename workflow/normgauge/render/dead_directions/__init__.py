"""Tables and figures of the dead directions."""
