"""What signed permutations are on their own: rules, greedy assignment, least example, scaffold."""
