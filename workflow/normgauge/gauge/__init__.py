"""Changes of coordinates that leave a model's function alone: groups, transforms, recovery, transport.

Rows are vectors: an element G of a group acts on activations as H -> H G. docs/signed-permutation.md derives what is used here.
"""
