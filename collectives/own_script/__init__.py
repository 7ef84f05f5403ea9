"""Whether somebody's training script computes on n ranks what one process would."""
