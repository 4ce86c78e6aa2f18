"""Routes: which links a message takes; ECMP's hash, detours, the load of many messages."""
