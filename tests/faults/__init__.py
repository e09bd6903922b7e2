"""The suite of faults: kills, bad disks, damaged files, hostile calls, wrong command lines.

`make test-faults` runs it. A kind of fault is a module here with a `KIND`; a case is a number, and
with the seed it decides everything that is random, so that one number reproduces a failure.
"""
