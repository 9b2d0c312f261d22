"""One module per format: each adds what it finds to a draft, and knows nothing of the others' files."""
