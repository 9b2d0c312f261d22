"""Providers: each turns what a `Source` answers into one subject, known or unknown with its reason."""
