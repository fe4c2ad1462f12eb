"""What a sample is made of: fields, their types, and lists of several lengths."""
