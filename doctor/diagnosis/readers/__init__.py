"""From paths to streams of text: folders, archives, compressed files, encodings; always bounded."""
