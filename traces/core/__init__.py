"""Common to all readers: typed events and their launches, calls, ranks' graphs, sniffing."""
