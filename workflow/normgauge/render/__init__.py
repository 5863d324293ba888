"""render: see docs/design/main-line.md."""
