"""The store: the files of a run, and the only way to write them.

output          what is at a path: the manifest of its run, whether it can be written to, moving an old run aside
outcome         a planned rollout, and how an attempt at it ended
saved_lines     lines with their keys: written, read again, and repaired after a crash
journal         one writer at a time, appending lines
history         what earlier runs left: done, failed, given up
plan_file       the plan on disk, what of it is owed, and one plan out of two
rollout_store   all of it together: begin, resume, extend, append
shards          several rollout files as one, for reading
"""
