"""training: see docs/design/main-line.md."""
