"""Figures of trajectories: transport, trust, merging and resumed training."""
