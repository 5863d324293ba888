"""Every published number beside ours, with a status and the reason."""
