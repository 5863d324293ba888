"""Tables and figures of exact recovery."""
