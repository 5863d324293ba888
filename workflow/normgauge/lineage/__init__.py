"""What a change of coordinates cannot hide: a canonical form of a checkpoint, whether two are the
same, and whether one was made from the other.
"""
