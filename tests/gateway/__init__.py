"""Tests of the doors for other protocols."""
