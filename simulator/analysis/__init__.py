"""What a timeline says: critical path, attribution, the numbers people quote."""
