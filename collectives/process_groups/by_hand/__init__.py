"""A backend of torch.distributed whose algorithms can be read: unix sockets and shared memory."""
