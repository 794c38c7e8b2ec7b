"""What names the parts of this node, and where it stands."""
