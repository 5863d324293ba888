"""Tables and figures of lineage."""
