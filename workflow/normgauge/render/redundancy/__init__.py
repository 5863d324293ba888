"""Tables and figures of redundancy."""
