"""Which rank hangs, and at which line: rules/ compares calls, watch/ follows processes."""
