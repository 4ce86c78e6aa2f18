"""Routing: the links that messages take; ECMP's hash, detours, the load of many messages."""
