"""What the records mean: catalogs, thresholds, localization and isolation policy; pure."""
