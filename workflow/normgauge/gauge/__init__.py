"""Changes of coordinates that leave a model's function alone: groups, transforms, matching,
checking.

Rows are vectors: an element G of a group acts on activations as H -> H G.
docs/signed_permutation.md derives what is used here.
"""
