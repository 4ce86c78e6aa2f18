"""One function per topology."""
