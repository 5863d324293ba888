"""checkpoints: see docs/design/main-line.md."""
