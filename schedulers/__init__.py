"""Carries isolation commands out and answers with acks."""
