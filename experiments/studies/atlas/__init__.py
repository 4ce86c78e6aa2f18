"""Atlases: a study of models, clusters and sizes as a site of pages, one for each cell."""
