"""Moves records through the rules with Faust and keeps their state; judges nothing itself."""
