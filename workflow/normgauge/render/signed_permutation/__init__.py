"""Tables and figures of signed permutations."""
