"""Tests of where a state helps."""
