"""What FSDP allocates: unit plans, a replay of the real code under fake tensors, the allocator, advice."""
