"""What is judged, as typed facts: a leaf package with values and no behaviour."""
