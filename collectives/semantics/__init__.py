"""What each call of torch.distributed is: its buffers, its expected result, and the judge."""
