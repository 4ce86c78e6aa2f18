"""What every reader uses: typed events, calls, a rank's graph, bytes of files, sniffing."""
