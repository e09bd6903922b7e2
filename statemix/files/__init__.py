"""Reading and writing files: every file that statemix opens is validated here.

regular        whether a path names a regular file
json_files     JSON with limits on depth and numbers, as plain values or as dataclasses
tensors        safetensors files: names, shapes, dtypes, finite numbers, and a hash
writing        files and directories that appear under their names only when they are complete

An error names the file, says what is wrong with it, and what to do.
"""
