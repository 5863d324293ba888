"""Functions on models in memory: what `import normgauge` offers. Each copies what it measures; see
`live.models`.
"""
