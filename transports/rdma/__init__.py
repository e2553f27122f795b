"""The rdma transport: RC queue pairs of libibverbs. Nothing here imports pyverbs until a device is opened."""
