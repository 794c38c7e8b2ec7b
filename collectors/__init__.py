"""What a node or a fabric can see, shipped as records: reads and parses, never judges."""
