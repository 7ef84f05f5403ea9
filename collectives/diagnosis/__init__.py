"""Which rank hangs, and at which line: rules/ compares what the ranks called, watch/ follows their
processes.
"""
