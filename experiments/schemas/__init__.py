"""JSON Schemas of all answers, one file each: made by ``generate`` from the types of the code."""
