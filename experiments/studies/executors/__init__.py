"""Where points are computed: here, by processes of this machine, or by workers of Dask."""
