"""Recordings of AMD's profilers: RPD, rocpd databases and rocprofv3's JSON."""
