"""Trajectories: gauges carried along a run of training, merging, and training that is resumed."""
