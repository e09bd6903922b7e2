"""Configs as data: every model and every run is a frozen dataclass.

This package imports neither torch nor numpy, so that the command line can read options and print
help texts without delay.
"""
