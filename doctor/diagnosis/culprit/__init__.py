"""The search for the culprit: an incident in, conclusions out, no input or output."""
