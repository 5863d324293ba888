"""calibration: see docs/design/main-line.md."""
