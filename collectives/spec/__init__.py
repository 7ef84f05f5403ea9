"""What each torch.distributed call is: its record, buffers and expected results, and the judge that tries it."""
