"""The store: the files of a run, and the only way to write them.

files           their names, and how a file is replaced as a whole
lock            one writer at a time
journal         appending lines
repair          setting aside what a crash left
history         what earlier runs left: done, failed, given up
agenda          the plan on disk, and what of it is owed
extend          one plan out of two
manifest        what a run was asked to do
rollout_store   all of it together: begin, resume, append
recall, shards  reading without writing
"""
