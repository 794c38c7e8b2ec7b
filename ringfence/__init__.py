"""The front door: command line, settings, supervision, demo, triage."""
