"""From paths to streams of text: folders, archives, compressed files, encodings; bounded whatever they hold."""
