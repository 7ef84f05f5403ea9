"""What each exercise must do: closed forms, computed without torch.distributed."""
